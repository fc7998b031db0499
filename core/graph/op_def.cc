// SPDX-License-Identifier: Apache-2.0
#include "core/graph/op_def.h"

#include <algorithm>
#include <iterator>
#include <string_view>
#include <unordered_map>

#include "core/graph/graph.h"
#include "core/graph/op_schema.h"

namespace caesura {

const OpDef& OpDefOf(const std::string& op_type, const std::string& domain) {
  using Index = std::unordered_map<std::string_view, const OpDef*>;
  static const auto* indices = [] {
    auto* out = new std::unordered_map<std::string_view, Index>();
    for (const OpDef& op : AllOpDefs()) (*out)[op.domain][op.op_type] = &op;
    return out;
  }();
  static const OpDef kNothing;
  const auto index = indices->find(domain);
  if (index == indices->end()) return kNothing;
  const auto found = index->second.find(op_type);
  return found == index->second.end() ? kNothing : *found->second;
}

const OpDef& OpDefOf(const Node& node) { return OpDefOf(node.op_type(), node.domain()); }

const OpDef* FindOwnOp(const std::string& op_type, const std::string& domain) {
  if (IsClosedDomain(domain)) return nullptr;
  const OpDef& found = OpDefOf(op_type, domain);
  return found.op_type.empty() ? nullptr : &found;
}

const OpDef* FindOwnOp(const Node& node) {
  const OpDefSet* own = node.graph() == nullptr ? nullptr : node.graph()->own_ops().get();
  const OpDef* found =
      own == nullptr ? nullptr : own->Find(node.op_type(), node.domain(), node.since_version());
  return found != nullptr ? found : FindOwnOp(node.op_type(), node.domain());
}

std::vector<int> DifferentiableInputs(const Node& yield) {
  const auto without = yield.Attr<std::vector<int64_t>>("non_differentiable_outputs", {});
  std::vector<int> out;
  for (int i = 0; i < static_cast<int>(yield.inputs().size()); ++i) {
    if (std::find(without.begin(), without.end(), i) == without.end()) out.push_back(i);
  }
  return out;
}

Status OpDefSet::Add(OpDef op) {
  const std::string name = "op " + op.domain + "::" + op.op_type;
  if (IsClosedDomain(op.domain))
    return InvalidArgument(name + " cannot be added to ONNX's domain '" + op.domain + "'");
  if (FindOwnOp(op.op_type, op.domain) != nullptr)
    return InvalidArgument(name + " is one of caesura's own");
  const int version = op.since_version;
  if (version < 1)
    return InvalidArgument(name + ": versions count from 1, got " + std::to_string(version));
  const bool fresh = ops_[{op.domain, op.op_type}].emplace(version, std::move(op)).second;
  return fresh
             ? Status()
             : InvalidArgument(name + " of version " + std::to_string(version) + " is added twice");
}

const OpDef* OpDefSet::Find(const std::string& op_type, const std::string& domain,
                            int version) const {
  auto found = ops_.find({domain, op_type});
  if (found == ops_.end()) return nullptr;
  auto behind = version == 0 ? found->second.end() : found->second.upper_bound(version);
  return behind == found->second.begin() ? nullptr : &std::prev(behind)->second;
}

bool OpDefSet::HasDomain(const std::string& domain) const {
  auto it = ops_.lower_bound({domain, ""});
  return it != ops_.end() && it->first.first == domain;
}

}  // namespace caesura
