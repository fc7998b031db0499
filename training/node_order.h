// SPDX-License-Identifier: Apache-2.0
#ifndef CAESURA_TRAINING_NODE_ORDER_H_
#define CAESURA_TRAINING_NODE_ORDER_H_

#include <unordered_map>

#include "core/graph/graph.h"

namespace caesura {

// Sorts the graph's nodes by their keys; nodes of one key keep their order. False if they are in
// that order already. REQUIRES: every node has a key, and none comes before what it reads.
bool SortNodes(Graph& graph, const std::unordered_map<const Node*, int>& keys);

}  // namespace caesura

#endif  // CAESURA_TRAINING_NODE_ORDER_H_
