// SPDX-License-Identifier: Apache-2.0
// GraphEdit: nodes that a pass adds, moves and removes, put in place in one sweep over the graph's
// list, however many they are.
//
//   GraphEdit edit(graph);
//   for (Node* node : found) edit.Replace(*node, {"Relu", {x}, graph.ReleaseOutputs(node)});
//   return edit.Finish();
#ifndef CAESURA_CORE_GRAPH_GRAPH_EDIT_H_
#define CAESURA_CORE_GRAPH_GRAPH_EDIT_H_

#include <exception>
#include <unordered_map>
#include <unordered_set>
#include <vector>

#include "core/graph/graph.h"

namespace caesura {

// Until Finish, nodes that were added stand at the end of graph.nodes(), and nodes that were moved
// or removed stand where they were. Nothing else reorders the graph meanwhile.
class GraphEdit {
 public:
  explicit GraphEdit(Graph& graph) : graph_(graph) {}
  // An exception that ends the scope leaves the graph as it is before Finish.
  ~GraphEdit() {
    if (std::uncaught_exceptions() == exceptions_) Finish();
  }
  GraphEdit(const GraphEdit&) = delete;
  GraphEdit& operator=(const GraphEdit&) = delete;

  // Graph::AddFor, in front of `origin` or after it. Nodes in one place keep their order.
  Node* InsertBefore(const Node& origin, NodeSpec spec);
  Node* InsertAfter(const Node& origin, NodeSpec spec);
  // InsertBefore and Remove.
  Node* Replace(const Node& origin, NodeSpec spec);
  // Puts `node` directly in front of `place`, or after it; the last call for a node counts.
  void MoveBefore(const Node& node, const Node& place);
  void MoveAfter(const Node& node, const Node& place);
  // Graph::RemoveNodes at the end of the edit: by then nothing that stays reads the node's outputs.
  void Remove(const Node& node) { removed_.insert(&node); }
  bool IsRemoved(const Node& node) const { return removed_.count(&node) > 0; }

  // Makes the changes, and returns whether there were any. A second call does nothing.
  bool Finish();

 private:
  struct Place {
    const Node* node;
    bool after;
  };
  struct Neighbours {
    std::vector<const Node*> before, after;
  };
  void Append(const Node* node, std::unordered_map<const Node*, Neighbours>& neighbours,
              std::vector<const Node*>* order) const;

  Graph& graph_;
  const int exceptions_ = std::uncaught_exceptions();
  std::vector<const Node*> moved_;  // in the order of the calls
  std::unordered_map<const Node*, Place> places_;
  std::unordered_set<const Node*> removed_;
};

}  // namespace caesura

#endif  // CAESURA_CORE_GRAPH_GRAPH_EDIT_H_
