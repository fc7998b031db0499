// SPDX-License-Identifier: Apache-2.0
// The cheapest set of edges between a source and a sink (Dinic, "Algorithm for solution of a
// problem of maximum flow in networks with power estimation", 1970).
#ifndef CAESURA_GRAPH_TRANSFORMS_SHAPES_MIN_CUT_H_
#define CAESURA_GRAPH_TRANSFORMS_SHAPES_MIN_CUT_H_

#include <cstddef>
#include <vector>

namespace caesura {

class MinCut {
 public:
  static constexpr int kSource = 0, kSink = 1, kUnlimited = 1 << 30;

  MinCut() : edges_of_(2) {}
  int AddVertex() {
    edges_of_.emplace_back();
    return static_cast<int>(edges_of_.size()) - 1;
  }
  void AddEdge(int from, int to, int capacity);

  // The capacity of the cut. REQUIRES: every path has an edge that is not kUnlimited; this is
  // the first call.
  int Solve();
  // Among the cheapest cuts the one closest to the source: by vertex, whether it stands on the
  // source's side.
  std::vector<bool> SourceSide() const;
  // And the one closest to the sink: by vertex, whether it stands on the sink's side.
  std::vector<bool> SinkSide() const;

 private:
  struct Edge {
    int to, rest;  // what may still flow; edges 2i and 2i + 1 are each other's reverse
  };
  bool FindLevels();
  int Push(int limit);

  std::vector<Edge> edges_;
  std::vector<std::vector<int>> edges_of_;
  std::vector<int> level_;
  std::vector<size_t> next_;
};

}  // namespace caesura

#endif  // CAESURA_GRAPH_TRANSFORMS_SHAPES_MIN_CUT_H_
