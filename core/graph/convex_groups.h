// SPDX-License-Identifier: Apache-2.0
// Groups of a graph's nodes that can each run as a whole: no path leaves a group and comes back.
//
// A node waits for those that make what it and its bodies read; a node of the optimizer also for
// all that read, before it in the list, what it updates in place; and a yield for the yield before
// it.
#ifndef CAESURA_CORE_GRAPH_CONVEX_GROUPS_H_
#define CAESURA_CORE_GRAPH_CONVEX_GROUPS_H_

#include <vector>

#include "core/graph/graph.h"

namespace caesura {

// Nodes go by their positions in graph.nodes(), which is in a topological order and does not change
// meanwhile. Each node starts as a group of its own.
class ConvexGroups {
 public:
  explicit ConvexGroups(const Graph& graph);

  // Positions of the nodes that wait for the node, each once.
  const std::vector<int>& waiting(int node) const { return waiting_[node]; }
  // The node's group: members in order.
  const std::vector<int>& members(int node) const { return members_[group_of_[node]]; }
  // Makes one group of those of `from` and `to`, where `to` waits for `from`. False, and nothing
  // changes, where a third group waits for one and is waited for by the other.
  bool Join(int from, int to);
  // All nodes in an order in which the members of each group follow one another: each group stands
  // where its last member stood, or after what it waits for; nodes keep their order otherwise.
  std::vector<const Node*> Order() const;

 private:
  bool ReachesThroughOthers(int a, int b) const;

  const Graph& graph_;
  std::vector<std::vector<int>> waiting_;  // by node
  std::vector<int> group_of_;              // by node: the position of one of the group's members
  std::vector<std::vector<int>> members_;  // by group, sorted
};

}  // namespace caesura

#endif  // CAESURA_CORE_GRAPH_CONVEX_GROUPS_H_
