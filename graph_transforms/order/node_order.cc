// SPDX-License-Identifier: Apache-2.0
#include "graph_transforms/order/node_order.h"

#include <algorithm>
#include <cassert>
#include <utility>
#include <vector>

namespace caesura {

std::unordered_map<const Node*, int> Positions(const Graph& graph) {
  std::unordered_map<const Node*, int> positions;
  for (const auto& node : graph.nodes())
    positions.emplace(node.get(), static_cast<int>(positions.size()));
  return positions;
}

bool SortNodes(Graph& graph, const std::unordered_map<const Node*, int>& keys) {
  std::vector<std::pair<int, const Node*>> keyed;
  for (const auto& node : graph.nodes()) keyed.emplace_back(keys.at(node.get()), node.get());
  const auto before = [](const auto& a, const auto& b) { return a.first < b.first; };
  assert(std::ranges::all_of(graph.nodes(), [&](const auto& node) {
    const auto comes_later = [&](const Value* read) {
      if (read == nullptr || read->graph() != &graph || read->producer() == nullptr) return false;
      return keys.at(read->producer()) > keys.at(node.get());
    };
    return std::ranges::none_of(node->inputs(), comes_later) &&
           std::ranges::none_of(Graph::ImplicitInputs(*node), comes_later);
  }));
  if (std::is_sorted(keyed.begin(), keyed.end(), before)) return false;
  std::stable_sort(keyed.begin(), keyed.end(), before);
  std::vector<const Node*> order;
  for (const auto& [key, node] : keyed) order.push_back(node);
  graph.Reorder(order);
  return true;
}

}  // namespace caesura
