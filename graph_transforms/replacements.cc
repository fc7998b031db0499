// SPDX-License-Identifier: Apache-2.0
#include "graph_transforms/replacements.h"

namespace caesura {

void Replacements::Replace(Value* from, Value* to) {
  const std::vector<Value::Use> uses = from->uses();
  for (const Value::Use& use : uses) use.node->SetInput(use.index, to);
  to_[from] = to;
}

void Replacements::Finish(Graph& graph) const {
  if (to_.empty()) return;
  for (int i = 0; i < static_cast<int>(graph.outputs().size()); ++i) {
    Value* output = graph.outputs()[i];
    for (auto it = to_.find(output); it != to_.end(); it = to_.find(output)) output = it->second;
    if (output != graph.outputs()[i]) graph.SetOutput(i, output);
  }
  for (const auto& node : graph.nodes()) {
    for (Graph* body : node->Subgraphs()) Finish(*body);
  }
}

}  // namespace caesura
