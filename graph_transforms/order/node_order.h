// SPDX-License-Identifier: Apache-2.0
#ifndef CAESURA_GRAPH_TRANSFORMS_ORDER_NODE_ORDER_H_
#define CAESURA_GRAPH_TRANSFORMS_ORDER_NODE_ORDER_H_

#include <unordered_map>

#include "core/graph/graph.h"

namespace caesura {

// The number of each node in the graph's order.
std::unordered_map<const Node*, int> Positions(const Graph& graph);

// Sorts the graph's nodes by their keys; nodes of one key keep their order. False if they are in
// that order already. REQUIRES: every node has a key, and none comes before what it reads.
bool SortNodes(Graph& graph, const std::unordered_map<const Node*, int>& keys);

}  // namespace caesura

#endif  // CAESURA_GRAPH_TRANSFORMS_ORDER_NODE_ORDER_H_
