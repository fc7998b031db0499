// SPDX-License-Identifier: Apache-2.0
// A part of a graph as a graph of its own.
#ifndef CAESURA_CORE_GRAPH_EXTRACT_SUBGRAPH_H_
#define CAESURA_CORE_GRAPH_EXTRACT_SUBGRAPH_H_

#include <memory>
#include <string>
#include <unordered_set>
#include <vector>

#include "core/graph/graph.h"

namespace caesura {

struct ExtractedSubgraph {
  std::unique_ptr<Graph> graph;  // refers to nothing outside; values keep their names
  std::vector<Value*> inputs;    // outer values of the graph's inputs, in order of first use
};

// True if the value is an initializer with one value in all runs: it is no graph input, and
// not in `changing`.
bool IsConstant(const Graph& graph, const Value* value,
                const std::unordered_set<std::string>& changing);

// Copies of `nodes`, which are in topological order and own no bodies, without what pins them to a
// provider; and of the constants that they read (bytes are shared). `outputs` are made by them and
// become the graph's outputs, in order.
ExtractedSubgraph ExtractSubgraph(const Graph& graph, const std::vector<const Node*>& nodes,
                                  const std::vector<Value*>& outputs,
                                  const std::unordered_set<std::string>& changing);

}  // namespace caesura

#endif  // CAESURA_CORE_GRAPH_EXTRACT_SUBGRAPH_H_
