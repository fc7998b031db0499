// SPDX-License-Identifier: Apache-2.0
#include <unordered_map>

#include "core/graph/fingerprint.h"
#include "core/kernels/kernel_registry.h"
#include "core/plan/execution_plan.h"

namespace caesura {
uint64_t ExecutionPlan::fingerprint() const {
  Hash hash;
  hash.Mix(static_cast<uint64_t>(data_.threads));
  std::unordered_map<const KernelDef*, uint64_t> places;  // which of an op's kernels was chosen
  for (const auto& provider : data_.providers) {
    hash.Mix(provider->rounding());
    for (const KernelDef& def : provider->kernels().defs()) places[&def] = places.size() + 1;
  }
  for (const PlanStep& step : data_.steps) {
    hash.Mix(step.provider->name());
    MixNode(hash, *step.node);
    hash.Mix(static_cast<uint64_t>(step.kind));
    hash.Mix(step.def == nullptr ? 0 : places[step.def]);
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
