// SPDX-License-Identifier: Apache-2.0
#include "core/graph/extract_subgraph.h"

#include <unordered_map>

namespace caesura {

bool IsConstant(const Graph& graph, const Value* value,
                const std::unordered_set<std::string>& changing) {
  return graph.Initializer(value) != nullptr && !graph.IsGraphInput(value) &&
         changing.count(value->name()) == 0;
}

ExtractedSubgraph ExtractSubgraph(const Graph& graph, const std::vector<const Node*>& nodes,
                                  const std::vector<Value*>& outputs,
                                  const std::unordered_set<std::string>& changing) {
  ExtractedSubgraph out;
  out.graph = std::make_unique<Graph>("subgraph");
  std::unordered_map<const Value*, Value*> copies;
  auto input_copy = [&](Value* value) -> Value* {
    if (value == nullptr) return nullptr;
    auto [it, fresh] = copies.try_emplace(value, nullptr);
    if (!fresh) return it->second;
    it->second = out.graph->AddValue(value->name(), value->type());
    if (IsConstant(graph, value, changing)) {
      out.graph->SetInitializer(it->second, *graph.Initializer(value));
    } else {
      out.graph->AddInput(it->second);
      out.inputs.push_back(value);
    }
    return it->second;
  };
  for (const Node* node : nodes) {
    std::vector<Value*> reads, writes;
    for (Value* value : node->inputs()) reads.push_back(input_copy(value));
    for (Value* value : node->outputs()) {
      Value* copy = value == nullptr ? nullptr : out.graph->AddValue(value->name(), value->type());
      if (value != nullptr) copies[value] = copy;
      writes.push_back(copy);
    }
    out.graph->CloneNode(*node, std::move(reads), std::move(writes));
  }
  for (const Value* value : outputs) out.graph->AddOutput(copies.at(value));
  return out;
}

}  // namespace caesura
