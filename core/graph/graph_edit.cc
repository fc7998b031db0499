// SPDX-License-Identifier: Apache-2.0
#include "core/graph/graph_edit.h"

#include <utility>

namespace caesura {

Node* GraphEdit::InsertBefore(const Node& origin, NodeSpec spec) {
  Node* node = graph_.AddFor(origin, std::move(spec));
  MoveBefore(*node, origin);
  return node;
}

Node* GraphEdit::InsertAfter(const Node& origin, NodeSpec spec) {
  Node* node = graph_.AddFor(origin, std::move(spec));
  MoveAfter(*node, origin);
  return node;
}

Node* GraphEdit::Replace(const Node& origin, NodeSpec spec) {
  Remove(origin);
  return InsertBefore(origin, std::move(spec));
}

void GraphEdit::MoveBefore(const Node& node, const Node& place) {
  if (places_.insert_or_assign(&node, Place{&place, false}).second) moved_.push_back(&node);
}

void GraphEdit::MoveAfter(const Node& node, const Node& place) {
  if (places_.insert_or_assign(&node, Place{&place, true}).second) moved_.push_back(&node);
}

// Appends the node with those that stand beside it, which may have others beside them.
void GraphEdit::Append(const Node* node, std::unordered_map<const Node*, Neighbours>& neighbours,
                       std::vector<const Node*>* order) const {
  const auto found = neighbours.find(node);
  if (found == neighbours.end()) {
    order->push_back(node);
    return;
  }
  const Neighbours beside = std::exchange(found->second, {});
  for (const Node* each : beside.before) Append(each, neighbours, order);
  order->push_back(node);
  for (const Node* each : beside.after) Append(each, neighbours, order);
}

bool GraphEdit::Finish() {
  if (!moved_.empty()) {
    std::unordered_map<const Node*, Neighbours> neighbours;
    for (const Node* node : moved_) {
      const Place& place = places_.at(node);
      Neighbours& beside = neighbours[place.node];
      (place.after ? beside.after : beside.before).push_back(node);
    }
    std::vector<const Node*> order;
    order.reserve(graph_.nodes().size());
    for (const auto& node : graph_.nodes()) {
      if (places_.count(node.get()) == 0) Append(node.get(), neighbours, &order);
    }
    graph_.Reorder(order);
  }
  const bool changed = !moved_.empty() || !removed_.empty();
  if (!removed_.empty()) graph_.RemoveNodes(removed_);
  moved_.clear();
  places_.clear();
  removed_.clear();
  return changed;
}

}  // namespace caesura
