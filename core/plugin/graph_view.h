// SPDX-License-Identifier: Apache-2.0
// Private to core/plugin: a Graph as plug-ins see it (caesura_provider.h).
#ifndef CAESURA_CORE_PLUGIN_GRAPH_VIEW_H_
#define CAESURA_CORE_PLUGIN_GRAPH_VIEW_H_

#include <deque>
#include <string>
#include <unordered_map>
#include <unordered_set>
#include <vector>

#include "core/graph/graph.h"
#include "core/plugin/caesura_provider.h"

// Thread safety: none. The graph and what it was made from outlive it and stay as they are.
struct CaesuraGraph {
  // `offered`: by position of the node; empty: all. `changing` as in CapabilityRequest.
  CaesuraGraph(const caesura::Graph& graph, const std::vector<bool>& offered,
               const std::unordered_set<std::string>& changing);

  const caesura::Node& node(size_t i) const { return *graph.nodes()[i]; }
  caesura::Status WriteAll();
  caesura::Status WriteNode(size_t i);

  const caesura::Graph& graph;
  const std::unordered_set<std::string>& changing;
  std::vector<CaesuraGraphNode> nodes;
  std::vector<CaesuraValue> values;
  std::vector<int32_t> inputs, outputs;
  std::string all_bytes, node_bytes;  // ONNX models
  std::unordered_map<std::string, std::vector<int64_t>>
      single_ints;  // attributes of one number, as lists
  std::unordered_map<std::string, std::vector<float>> single_floats;

 private:
  int32_t ValueIndex(const caesura::Value* value);

  std::unordered_map<const caesura::Value*, int32_t> indices_;
  std::deque<std::vector<int32_t>> lists_;  // storage of nodes
  std::deque<std::vector<int64_t>> dims_;   // storage of values
};

namespace caesura {

// The part of the table that looks at graphs.
void FillGraphFunctions(CaesuraProviderApi* api);

}  // namespace caesura

#endif  // CAESURA_CORE_PLUGIN_GRAPH_VIEW_H_
