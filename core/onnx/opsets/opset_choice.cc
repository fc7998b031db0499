// SPDX-License-Identifier: Apache-2.0
#include "core/onnx/opsets/opset_choice.h"

#include <algorithm>
#include <vector>

#include "core/base/status_macros.h"
#include "core/graph/op_schema.h"
#include "core/onnx/opsets/opset_normalization.h"

namespace caesura {
namespace {

// Every reader in use knows this one; going lower gains nobody.
constexpr int kLowestOpset = 17;

void CollectNodes(const Graph& graph, std::vector<const Node*>* out) {
  for (const auto& node : graph.nodes()) {
    out->push_back(node.get());
    for (const Graph* body : node->Subgraphs()) CollectNodes(*body, out);
  }
}

bool TypesFit(const std::vector<Value*>& values, const std::vector<OpSchema::Formal>& formals) {
  for (size_t i = 0; i < values.size(); ++i) {
    if (values[i] == nullptr) continue;
    if (formals.empty() || (i >= formals.size() && !formals.back().is_variadic)) return false;
    const OpSchema::Formal& formal = formals[std::min(i, formals.size() - 1)];
    const ValueType& type = values[i]->type();
    if (type.is_tensor() && type.dtype != DType::kUndefined && !formal.dtypes.Contains(type.dtype))
      return false;
  }
  return true;
}

}  // namespace

bool FitsOpset(const Node& node, int opset) {
  if (node.since_version() == 0) return true;
  const OpSchema* schema = FindOpSchema(node.op_type(), node.domain(), opset);
  if (schema == nullptr || schema->is_deprecated) return false;
  if (schema->since_version == node.since_version()) return true;
  const bool is_newest = node.since_version() == SinceVersion(node.op_type(), node.domain());
  if (!is_newest || !node.domain().empty() || schema->since_version < MeaningSince(node.op_type()))
    return false;
  for (const auto& [name, value] : node.attributes()) {
    if (schema->attribute(name) == nullptr) return false;
  }
  return TypesFit(node.inputs(), schema->inputs) && TypesFit(node.outputs(), schema->outputs);
}

namespace {

Status CheckFits(const std::vector<const Node*>& nodes, int opset) {
  std::string misfits;
  int count = 0;
  for (const Node* node : nodes) {
    if (FitsOpset(*node, opset)) continue;
    ++count;
    misfits += "\n  " + node->Label();
    if (!node->source().empty()) misfits += ", " + node->source();
  }
  if (count == 0) return {};
  return Unsupported("opset " + std::to_string(opset) + " does not have " + std::to_string(count) +
                     " node(s):" + misfits);
}

}  // namespace

Result<std::map<std::string, int>> ChooseOpsets(const Model& model, int opset) {
  std::vector<const Node*> all;
  CollectNodes(*model.graph, &all);
  std::map<std::string, std::vector<const Node*>> by_domain;
  by_domain[""];
  for (const Node* node : all) by_domain[node->domain()].push_back(node);
  std::map<std::string, int> out = model.opsets;
  std::string misfits;
  for (const auto& [domain, nodes] : by_domain) {
    const int newest = std::max(LatestOpset(domain), 1);
    if (!IsClosedDomain(domain)) {
      out.emplace(domain, newest);
      continue;
    }
    if (domain.empty() && opset != 0) {
      RETURN_IF_ERROR(CheckFits(nodes, opset));
      out[domain] = opset;
      continue;
    }
    auto all_fit = [&, &nodes = nodes](int version) {
      return std::all_of(nodes.begin(), nodes.end(),
                         [&](const Node* node) { return FitsOpset(*node, version); });
    };
    int chosen = std::min(kLowestOpset, newest);
    while (chosen <= newest && !all_fit(chosen)) ++chosen;
    if (chosen > newest) {
      // Nodes that are older than that, all of them.
      chosen = std::min(kLowestOpset, newest);
      while (chosen > 0 && !all_fit(chosen)) --chosen;
    }
    out[domain] = chosen;
    for (const Node* node : nodes) {
      if (chosen > 0 || FitsOpset(*node, newest)) continue;
      misfits += "\n  " + node->Label() + " of version " + std::to_string(node->since_version());
    }
    if (chosen == 0 && misfits.empty()) misfits = "\n  those of domain '" + domain + "'";
  }
  if (misfits.empty()) return out;
  return Unsupported("no single opset version gives these nodes their semantics:" + misfits);
}

int ChooseIrVersion(const Model& model, int opset, int least) {
  static constexpr std::pair<int, int> kSinceOpset[] = {{28, 14}, {25, 13}, {24, 12}, {23, 11},
                                                        {21, 10}, {19, 9},  {15, 8},  {0, 7}};
  int version = least;
  for (const auto& [since, ir] : kSinceOpset) {
    if (opset >= since) version = std::max(version, ir);
  }
  for (const auto& [value, tensor] : model.graph->initializers()) {
    if (tensor.dtype() == DType::kFloat4E2M1) version = std::max(version, 11);
    if (tensor.dtype() == DType::kFloat8E8M0) version = std::max(version, 12);
    if (tensor.dtype() == DType::kInt2 || tensor.dtype() == DType::kUInt2)
      version = std::max(version, 13);
  }
  return version;
}

}  // namespace caesura
