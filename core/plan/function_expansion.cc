// SPDX-License-Identifier: Apache-2.0
#include "core/plan/function_expansion.h"

#include <algorithm>

#include "core/base/status_macros.h"
#include "core/graph/function_body.h"

namespace caesura {
namespace {

// A body may hold ops that have bodies themselves; the standard's nesting is a handful deep.
constexpr int kMaxRounds = 16;

bool HasKernel(const Node& node, const ProviderList& providers) {
  if (node.Is("YieldOp", kCaesuraDomain)) return true;
  return std::any_of(providers.begin(), providers.end(),
                     [&](const auto& provider) { return !provider->kernels().Find(node).empty(); });
}

}  // namespace

Result<bool> ExpandMissingKernels(Graph& graph, const ProviderList& providers) {
  bool changed = false;
  for (int round = 0; round < kMaxRounds; ++round) {
    std::vector<Node*> missing;
    for (const auto& node : graph.nodes()) {
      if (!HasKernel(*node, providers)) missing.push_back(node.get());
      for (Graph* body : node->Subgraphs()) {
        ASSIGN_OR_RETURN(const bool body_changed, ExpandMissingKernels(*body, providers));
        changed |= body_changed;
      }
    }
    bool expanded = false;
    for (Node* node : missing) {
      ASSIGN_OR_RETURN(const bool one, ExpandFunctionBody(graph, node));
      expanded |= one;
    }
    if (!expanded) break;
    RETURN_IF_ERROR(graph.SortTopologically());
    changed = true;
  }
  return changed;
}

}  // namespace caesura
