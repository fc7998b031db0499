// SPDX-License-Identifier: Apache-2.0
#include <unordered_map>

#include "core/plan/execution_plan.h"

namespace caesura {
namespace {

// FNV-1a
class Hash {
 public:
  void Mix(const std::string& text) {
    for (unsigned char c : text) value_ = (value_ ^ c) * 1099511628211ull;
    value_ = (value_ ^ 0x1f) * 1099511628211ull;  // so that "ab" "c" is not "a" "bc"
  }
  void Mix(uint64_t number) { Mix(std::to_string(number)); }
  uint64_t value() const { return value_; }

 private:
  uint64_t value_ = 14695981039346656037ull;
};

// Bodies and tensors count only by their presence.
void MixAttribute(Hash& hash, const std::string& name, const Attribute& attribute) {
  hash.Mix(name);
  hash.Mix(attribute.index());
  if (const auto* v = std::get_if<int64_t>(&attribute)) hash.Mix(std::to_string(*v));
  if (const auto* v = std::get_if<float>(&attribute)) hash.Mix(std::to_string(*v));
  if (const auto* v = std::get_if<std::string>(&attribute)) hash.Mix(*v);
  if (const auto* v = std::get_if<std::vector<int64_t>>(&attribute)) {
    for (int64_t i : *v) hash.Mix(std::to_string(i));
  }
  if (const auto* v = std::get_if<std::vector<float>>(&attribute)) {
    for (float f : *v) hash.Mix(std::to_string(f));
  }
}

}  // namespace

uint64_t ExecutionPlan::fingerprint() const {
  Hash hash;
  hash.Mix(static_cast<uint64_t>(data_.threads));
  std::unordered_map<const KernelDef*, uint64_t> places;  // which of an op's kernels was chosen
  for (const auto& provider : data_.providers) {
    hash.Mix(provider->rounding());
    for (const KernelDef& def : provider->kernels().defs()) places[&def] = places.size() + 1;
  }
  for (const Step& step : data_.steps) {
    hash.Mix(step.node->op_type() + "/" + step.provider->name());
    hash.Mix(static_cast<uint64_t>(step.kind));
    hash.Mix(step.def == nullptr ? 0 : places[step.def]);
    for (const auto& [name, attribute] : step.node->attributes())
      MixAttribute(hash, name, attribute);
    for (uint32_t a = step.first_argument;
         a < step.first_argument + step.input_count + step.output_count; ++a) {
      const PlannedValue& value = data_.values[data_.argument_values[a]];
      hash.Mix(data_.arguments[a]);
      hash.Mix(DTypeName(value.dtype) + value.shape.ToString());
      if (!value.layout.dense())
        hash.Mix(Shape(value.layout.strides).ToString() + std::to_string(value.layout.offset));
    }
  }
  return hash.value();
}

}  // namespace caesura
