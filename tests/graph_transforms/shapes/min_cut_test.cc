// SPDX-License-Identifier: Apache-2.0
#include "graph_transforms/shapes/min_cut.h"

#include <gtest/gtest.h>

#include <random>

namespace caesura {
namespace {

constexpr int kAll = MinCut::kUnlimited;

// source -> a -3-> b -1-> c -1-> d -> sink: two cuts of one, at b-c and at c-d.
TEST(MinCut, FindsTheCutsClosestToBothEnds) {
  MinCut cut;
  const int a = cut.AddVertex(), b = cut.AddVertex(), c = cut.AddVertex(), d = cut.AddVertex();
  cut.AddEdge(MinCut::kSource, a, kAll);
  cut.AddEdge(a, b, 3);
  cut.AddEdge(b, c, 1);
  cut.AddEdge(c, d, 1);
  cut.AddEdge(d, MinCut::kSink, kAll);
  EXPECT_EQ(cut.Solve(), 1);
  EXPECT_EQ(cut.SourceSide(), (std::vector<bool>{true, false, true, true, false, false}));
  EXPECT_EQ(cut.SinkSide(), (std::vector<bool>{false, true, false, false, false, true}));
}

TEST(MinCut, OfNothingIsNothing) {
  MinCut cut;
  cut.AddEdge(MinCut::kSource, cut.AddVertex(), kAll);
  EXPECT_EQ(cut.Solve(), 0);
}

// Against all ways to divide the vertices.
TEST(MinCut, IsTheCheapestOfAllDivisions) {
  std::mt19937 random(7);
  for (int round = 0; round < 300; ++round) {
    const int inner = 1 + static_cast<int>(random() % 6), count = inner + 2;
    MinCut cut;
    for (int v = 0; v < inner; ++v) cut.AddVertex();
    std::vector<std::vector<int>> capacity(count, std::vector<int>(count, 0));
    for (int e = 0; e < 2 * count; ++e) {
      const int from = static_cast<int>(random() % count), to = static_cast<int>(random() % count);
      if (from == to || from == MinCut::kSink || to == MinCut::kSource) continue;
      const int size = static_cast<int>(random() % 4);
      cut.AddEdge(from, to, size);
      capacity[from][to] += size;
    }
    auto cost = [&](const std::vector<bool>& source_side) {
      int sum = 0;
      for (int a = 0; a < count; ++a) {
        for (int b = 0; b < count; ++b)
          sum += source_side[a] && !source_side[b] ? capacity[a][b] : 0;
      }
      return sum;
    };
    int best = 1 << 20;
    for (int mask = 0; mask < (1 << inner); ++mask) {
      std::vector<bool> side = {true, false};
      for (int v = 0; v < inner; ++v) side.push_back((mask >> v & 1) != 0);
      best = std::min(best, cost(side));
    }
    ASSERT_EQ(cut.Solve(), best);
    EXPECT_EQ(cost(cut.SourceSide()), best);
    std::vector<bool> not_sink = cut.SinkSide();
    not_sink.flip();
    EXPECT_EQ(cost(not_sink), best);
  }
}

}  // namespace
}  // namespace caesura
