// SPDX-License-Identifier: Apache-2.0
#include "graph_transforms/shapes/min_cut.h"

#include <algorithm>
#include <cassert>

namespace caesura {

void MinCut::AddEdge(int from, int to, int capacity) {
  edges_of_[from].push_back(static_cast<int>(edges_.size()));
  edges_.push_back({to, capacity});
  edges_of_[to].push_back(static_cast<int>(edges_.size()));
  edges_.push_back({from, 0});
}

bool MinCut::FindLevels() {
  level_.assign(edges_of_.size(), -1);
  std::vector<int> queue = {kSource};
  level_[kSource] = 0;
  for (size_t head = 0; head < queue.size(); ++head) {
    for (int e : edges_of_[queue[head]]) {
      if (edges_[e].rest == 0 || level_[edges_[e].to] >= 0) continue;
      level_[edges_[e].to] = level_[queue[head]] + 1;
      queue.push_back(edges_[e].to);
    }
  }
  return level_[kSink] >= 0;
}

// One path along rising levels, without recursion: chains of shapes may be long.
int MinCut::Push(int limit) {
  std::vector<int> path;  // edges
  int at = kSource;
  while (at != kSink) {
    size_t& i = next_[at];
    for (; i < edges_of_[at].size(); ++i) {
      const Edge& edge = edges_[edges_of_[at][i]];
      if (edge.rest > 0 && level_[edge.to] == level_[at] + 1) break;
    }
    if (i < edges_of_[at].size()) {
      path.push_back(edges_of_[at][i]);
      at = edges_[path.back()].to;
    } else if (at == kSource) {
      return 0;
    } else {  // a dead end
      at = edges_[path.back() ^ 1].to;
      path.pop_back();
      ++next_[at];
    }
  }
  for (int e : path) limit = std::min(limit, edges_[e].rest);
  for (int e : path) {
    edges_[e].rest -= limit;
    edges_[e ^ 1].rest += limit;
  }
  return limit;
}

int MinCut::Solve() {
  assert(level_.empty());
  int flow = 0;
  while (FindLevels()) {
    next_.assign(edges_of_.size(), 0);
    while (const int pushed = Push(kUnlimited)) flow += pushed;
  }
  assert(flow < kUnlimited);
  return flow;
}

std::vector<bool> MinCut::SourceSide() const {
  std::vector<bool> side(edges_of_.size(), false);
  for (size_t v = 0; v < side.size(); ++v) side[v] = level_[v] >= 0;
  return side;
}

std::vector<bool> MinCut::SinkSide() const {
  std::vector<bool> side(edges_of_.size(), false);
  std::vector<int> queue = {kSink};
  side[kSink] = true;
  for (size_t head = 0; head < queue.size(); ++head) {
    for (int e : edges_of_[queue[head]]) {
      const int from = edges_[e].to;
      if (edges_[e ^ 1].rest == 0 || side[from]) continue;
      side[from] = true;
      queue.push_back(from);
    }
  }
  return side;
}

}  // namespace caesura
