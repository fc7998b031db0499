// SPDX-License-Identifier: Apache-2.0
#include "core/kernels/kernel_registry.h"

#include "core/base/status_macros.h"
#include "core/kernels/kernel_creation.h"

namespace caesura {
namespace {

std::string Key(const std::string& domain, const std::string& op_type) {
  return domain + "::" + op_type;
}

// `why`, if given, grows by the reason where it does not fit.
bool Fits(const KernelDef& def, const Node& node, const std::vector<DType>& dtypes,
          std::string* why) {
  const int version = node.since_version();
  if (version != 0 && (version < def.since || version > def.until)) {
    if (why == nullptr) return false;
    *why += (why->empty() ? "" : "; ") + ("version " + std::to_string(version)) +
            " is outside of [" + std::to_string(def.since) + ", " +
            (def.until == INT_MAX ? "newest" : std::to_string(def.until)) + "]";
    return false;
  }
  if (def.typed_input >= static_cast<int>(dtypes.size())) return true;
  const DType dtype = dtypes[def.typed_input];
  if (dtype == DType::kUndefined || def.types.Contains(dtype)) return true;
  if (why == nullptr) return false;
  *why += (why->empty() ? "" : "; ") + ("input " + std::to_string(def.typed_input)) + " is " +
          DTypeName(dtype) + ", the kernel takes " + def.types.ToString();
  return false;
}

}  // namespace

void KernelRegistry::Add(KernelDef def) {
  defs_.push_back(std::move(def));
  by_op_[Key(defs_.back().domain, defs_.back().op_type)].push_back(&defs_.back());
}

std::vector<const KernelDef*> KernelRegistry::Find(const Node& node,
                                                   const std::vector<DType>& input_dtypes,
                                                   std::string* why) const {
  std::vector<const KernelDef*> out;
  auto it = by_op_.find(Key(node.domain(), node.op_type()));
  if (it == by_op_.end()) {
    if (why != nullptr) *why = "no kernel is registered for this op";
    return out;
  }
  for (const KernelDef* def : it->second) {
    if (Fits(*def, node, input_dtypes, why)) out.push_back(def);
  }
  return out;
}

std::vector<const KernelDef*> KernelRegistry::Find(const Node& node, std::string* why) const {
  std::vector<DType> dtypes;
  for (const Value* input : node.inputs()) {
    dtypes.push_back(input != nullptr && input->type().is_tensor() ? input->dtype()
                                                                   : DType::kUndefined);
  }
  return Find(node, dtypes, why);
}

Result<const KernelDef*> KernelRegistry::Create(KernelInfo& info,
                                                const std::string& provider) const {
  std::vector<DType> dtypes;
  for (int i = 0; i < info.input_count(); ++i) {
    dtypes.push_back(info.HasInput(i) && info.input(i).is_tensor ? info.InputDType(i)
                                                                 : DType::kUndefined);
  }
  std::string refusals;
  for (const KernelDef* def : Find(info.node(), dtypes)) {
    info.Reset();
    Status status = CreateKernel(*def, info);
    if (status.ok()) return def;
    if (status.code() != StatusCode::kDeclined) return status;
    refusals += "; " + status.message();
  }
  std::string why;
  Find(info.node(), dtypes, &why);
  why = why.empty() && !refusals.empty() ? refusals.substr(2) : why + refusals;
  const std::string at = info.node().source().empty() ? "" : " (from " + info.node().source() + ")";
  return Declined(info.node().Label() + " has no kernel on " + provider + at + ": " + why);
}

}  // namespace caesura
