// SPDX-License-Identifier: Apache-2.0
#include "core/graph/convex_groups.h"

#include <algorithm>
#include <functional>
#include <numeric>
#include <queue>
#include <unordered_map>

#include "core/graph/op_def.h"

namespace caesura {

ConvexGroups::ConvexGroups(const Graph& graph)
    : graph_(graph),
      waiting_(graph.nodes().size()),
      group_of_(graph.nodes().size()),
      members_(graph.nodes().size()) {
  std::iota(group_of_.begin(), group_of_.end(), 0);
  for (size_t i = 0; i < members_.size(); ++i) members_[i] = {static_cast<int>(i)};
  std::unordered_map<const Node*, int> position;
  position.reserve(graph.nodes().size());
  int yield = -1;  // the last one so far
  for (const auto& node : graph.nodes()) {
    const auto at = static_cast<int>(position.size());
    position.emplace(node.get(), at);
    auto wait_for = [&](int other) {
      std::vector<int>& waiting = waiting_[other];
      if (waiting.empty() || waiting.back() != at) waiting.push_back(at);
    };
    auto wait_for_producer = [&](const Value* value) {
      if (value != nullptr && value->producer() != nullptr && value->graph() == &graph)
        wait_for(position.at(value->producer()));
    };
    for (const Value* input : node->inputs()) wait_for_producer(input);
    for (const Value* input : Graph::ImplicitInputs(*node)) wait_for_producer(input);
    for (const Value* input : node->inputs()) {
      if (node->phase() != Phase::kOptimizer || input == nullptr) continue;
      for (const Value::Use& use : input->uses()) {
        const auto reader = position.find(use.node);  // only those before this node are there
        if (reader != position.end() && reader->second != at) wait_for(reader->second);
      }
    }
    if (!IsYield(*node)) continue;
    if (yield >= 0) wait_for(yield);
    yield = at;
  }
}

bool ConvexGroups::Join(int from, int to) {
  const int a = group_of_[from], b = group_of_[to];
  if (a == b) return true;
  if (ReachesThroughOthers(a, b)) return false;
  std::vector<int> joined;
  std::merge(members_[a].begin(), members_[a].end(), members_[b].begin(), members_[b].end(),
             std::back_inserter(joined));
  for (int member : members_[b]) group_of_[member] = a;
  members_[b].clear();
  members_[a] = std::move(joined);
  return true;
}

bool ConvexGroups::ReachesThroughOthers(int a, int b) const {
  const int last = members_[b].back();  // b waits for no group that stands after it as a whole
  std::vector<bool> seen(members_.size(), false);
  seen[a] = true;
  std::vector<int> todo;
  auto visit = [&](int group) {
    for (int member : members_[group]) {
      for (int node : waiting_[member]) {
        const int next = group_of_[node];
        if (group == a && next == b) continue;
        if (seen[next] || members_[next].front() > last) continue;
        seen[next] = true;
        todo.push_back(next);
      }
    }
  };
  visit(a);
  while (!todo.empty() && !seen[b]) {
    const int group = todo.back();
    todo.pop_back();
    visit(group);
  }
  return seen[b];
}

std::vector<const Node*> ConvexGroups::Order() const {
  const auto count = static_cast<int>(group_of_.size());
  std::vector<int> waits(count, 0);  // by group: for how many nodes of others, counted by edges
  for (int node = 0; node < count; ++node) {
    for (int next : waiting_[node]) waits[group_of_[next]] += group_of_[next] != group_of_[node];
  }
  // The ready group that stands first is next; a group stands where its last member does.
  std::priority_queue<int, std::vector<int>, std::greater<>> ready;  // last members
  auto add = [&](int group) { ready.push(members_[group].back()); };
  for (int node = 0; node < count; ++node) {
    if (group_of_[node] == node && waits[node] == 0) add(node);
  }
  std::vector<const Node*> order;
  order.reserve(count);
  while (!ready.empty()) {
    const int group = group_of_[ready.top()];
    ready.pop();
    for (int member : members_[group]) order.push_back(graph_.nodes()[member].get());
    for (int member : members_[group]) {
      for (int next : waiting_[member]) {
        if (group_of_[next] != group && --waits[group_of_[next]] == 0) add(group_of_[next]);
      }
    }
  }
  return order;
}

}  // namespace caesura
