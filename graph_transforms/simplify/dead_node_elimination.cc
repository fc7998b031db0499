// SPDX-License-Identifier: Apache-2.0
#include "graph_transforms/simplify/dead_node_elimination.h"

#include "core/graph/op_def.h"

namespace caesura {
namespace {

bool RemoveDeadNodes(Graph& graph) {
  bool changed = false;
  for (const auto& node : graph.nodes()) {
    for (Graph* body : node->Subgraphs()) changed |= RemoveDeadNodes(*body);
  }
  // Against the order of the list: a node is alive when it acts or when something alive reads an
  // output.
  std::unordered_set<const Value*> read(graph.outputs().begin(), graph.outputs().end());
  std::unordered_set<const Node*> dead;
  for (auto it = graph.nodes().rbegin(); it != graph.nodes().rend(); ++it) {
    const Node& node = **it;
    bool alive = node.phase() == Phase::kOptimizer || IsYield(node);
    for (const Value* output : node.outputs()) alive |= output != nullptr && read.count(output) > 0;
    if (!alive) {
      dead.insert(&node);
      continue;
    }
    for (const Value* input : node.inputs()) read.insert(input);
    for (const Value* input : Graph::ImplicitInputs(node)) read.insert(input);
  }
  graph.RemoveNodes(dead);
  return changed || !dead.empty();
}

class DeadNodeElimination : public Pass {
 public:
  const char* name() const override { return "dead_node_elimination"; }
  Result<bool> Run(Model& model) override { return RemoveDeadNodes(*model.graph); }
};

}  // namespace

std::shared_ptr<Pass> MakeDeadNodeEliminationPass() {
  return std::make_shared<DeadNodeElimination>();
}

}  // namespace caesura
