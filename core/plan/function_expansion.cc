// SPDX-License-Identifier: Apache-2.0
#include "core/plan/function_expansion.h"

#include <algorithm>
#include <unordered_set>

#include "core/base/status_macros.h"
#include "core/kernels/kernel_registry.h"
#include "core/onnx/function_body.h"
#include "core/graph/op_def.h"
#include "core/plan/placement.h"
#include "core/providers/compiled_subgraph.h"

namespace caesura {
namespace {

// A body may hold ops that have bodies themselves; the standard's nesting is a handful deep.
constexpr int kMaxRounds = 16;

bool HasKernel(const Node& node, const ProviderList& providers) {
  if (IsYield(node)) return true;
  return std::any_of(providers.begin(), providers.end(),
                     [&](const auto& provider) { return !provider->kernels().Find(node).empty(); });
}

// A provider has a kernel for the body of a compiled subgraph as a whole.
void AddMissingWithin(const Node& node, const ProviderList& providers,
                      std::vector<std::string>* lines) {
  if (node.Is(kCompiledSubgraphOp, kCaesuraDomain)) return;
  for (const Graph* body : node.Subgraphs()) {
    const std::vector<std::string> more = MissingInBody(*body, providers);
    lines->insert(lines->end(), more.begin(), more.end());
  }
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

std::vector<std::string> MissingInBody(const Graph& body, const ProviderList& providers) {
  std::vector<std::string> lines;
  for (const auto& node : body.nodes()) {
    AddMissingWithin(*node, providers, &lines);
    std::string why;
    if (!IsYield(*node) && HasKernel(*node, providers)) continue;
    providers.back()->kernels().Find(*node, &why);
    lines.push_back(node->Label() + " in the body '" + body.name() + "' has no kernel on " +
                    providers.back()->name() + ": " + why);
  }
  return lines;
}

Status NoKernels(const std::vector<std::string>& lines) {
  if (lines.empty()) return {};
  std::string text = std::to_string(lines.size()) + " node(s) have no kernel:";
  for (const std::string& line : lines) text += "\n  " + line;
  return Unsupported(text);
}

Status CheckKernels(const Graph& graph, const ProviderList& providers) {
  std::unordered_set<const Value*> needed(graph.outputs().begin(), graph.outputs().end());
  std::vector<const Node*> nodes;
  for (size_t i = graph.nodes().size(); i-- > 0;) {
    const Node& node = *graph.nodes()[i];
    const auto is_needed = [&](const Value* output) {
      return output != nullptr && needed.count(output) > 0;
    };
    if (!IsYield(node) && std::none_of(node.outputs().begin(), node.outputs().end(), is_needed))
      continue;
    nodes.push_back(&node);
    needed.insert(node.inputs().begin(), node.inputs().end());
    for (const Value* input : Graph::ImplicitInputs(node)) needed.insert(input);
  }
  std::vector<std::string> lines;
  for (auto node = nodes.rbegin(); node != nodes.rend(); ++node) {
    AddMissingWithin(**node, providers, &lines);
    std::string why;
    if (IsYield(**node) || !ProvidersFor(**node, providers, &why).empty()) continue;
    lines.push_back((*node)->Label() + " has no kernel on " + why);
  }
  return NoKernels(lines);
}

}  // namespace caesura
