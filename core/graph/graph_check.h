// SPDX-License-Identifier: Apache-2.0
// The invariants of a Graph. Run after load and after each pass.
#ifndef CAESURA_CORE_GRAPH_GRAPH_CHECK_H_
#define CAESURA_CORE_GRAPH_GRAPH_CHECK_H_

#include "core/base/status.h"
#include "core/graph/graph.h"

namespace caesura {

// Ok when, here and in all bodies: every value has one maker (a node, an input or an initializer)
// and a name of its own; producers and uses mirror the nodes' lists; nodes stand in topological
// order, a body's reads included; outputs and reads are values that exist and are visible.
// Otherwise kInternal with every fault (the first 20). Linear in the graph's size.
Status CheckGraph(const Graph& graph);

}  // namespace caesura

#endif  // CAESURA_CORE_GRAPH_GRAPH_CHECK_H_
