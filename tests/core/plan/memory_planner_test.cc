// SPDX-License-Identifier: Apache-2.0
#include "core/plan/memory_planner.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <random>

#include "core/tensor/tensor.h"

namespace caesura {
namespace {

std::vector<MemoryBlock> RandomBlocks(uint32_t seed, int count, int steps) {
  std::mt19937 random(seed);
  std::vector<MemoryBlock> blocks;
  for (int i = 0; i < count; ++i) {
    const int first = static_cast<int>(random() % steps);
    const int last = std::min<int>(steps - 1, first + static_cast<int>(random() % 8));
    const size_t bytes = random() % 10 == 0 ? 0 : 1 + random() % 5000;
    blocks.push_back({bytes, first, last});
  }
  return blocks;
}

bool LiveTogether(const MemoryBlock& a, const MemoryBlock& b) {
  return a.first <= b.last && b.first <= a.last;
}
bool Overlap(const MemoryBlock& a, const MemoryBlock& b) {
  return a.bytes > 0 && b.bytes > 0 && a.offset < b.offset + b.bytes &&
         b.offset < a.offset + a.bytes;
}

// The most bytes that are alive at one step: no plan can do with less.
size_t LowerBound(const std::vector<MemoryBlock>& blocks, int steps) {
  size_t most = 0;
  for (int s = 0; s < steps; ++s) {
    size_t live = 0;
    for (const MemoryBlock& block : blocks)
      live += block.first <= s && s <= block.last ? block.bytes : 0;
    most = std::max(most, live);
  }
  return most;
}

TEST(MemoryPlanner, BlocksAliveTogetherNeverOverlap) {
  for (uint32_t seed = 0; seed < 60; ++seed) {
    std::vector<MemoryBlock> blocks =
        RandomBlocks(seed, seed % 3 == 0 ? 400 : 120, 40);  // few are held in another way
    const size_t arena = PlanMemory(blocks, true);
    EXPECT_GE(arena, LowerBound(blocks, 40));
    for (size_t i = 0; i < blocks.size(); ++i) {
      EXPECT_EQ(blocks[i].offset % kBufferAlignment, 0u);
      EXPECT_LE(blocks[i].offset + blocks[i].bytes, arena);
      for (size_t j = 0; j < i; ++j) {
        ASSERT_FALSE(LiveTogether(blocks[i], blocks[j]) && Overlap(blocks[i], blocks[j]))
            << seed << " " << i << " " << j;
      }
    }
  }
}

TEST(MemoryPlanner, ComesCloseToTheLowerBound) {
  size_t arena = 0, bound = 0;
  for (uint32_t seed = 0; seed < 20; ++seed) {
    std::vector<MemoryBlock> blocks = RandomBlocks(seed, 200, 50);
    arena += PlanMemory(blocks, true);
    bound += LowerBound(blocks, 50);
  }
  EXPECT_LE(static_cast<double>(arena), 1.15 * static_cast<double>(bound));
}

TEST(MemoryPlanner, AChainTakesTwoBuffers) {
  // Step i reads block i - 1 and writes block i.
  std::vector<MemoryBlock> blocks;
  for (int i = 0; i < 10; ++i) blocks.push_back({1000, i, i + 1});
  EXPECT_EQ(PlanMemory(blocks, true), 2048u);
}

TEST(MemoryPlanner, OffsetsAreMultiplesOfTheAlignment) {
  for (const bool reuse : {true, false}) {
    std::vector<MemoryBlock> blocks = RandomBlocks(3, 100, 30);
    EXPECT_EQ(PlanMemory(blocks, reuse, kDeviceAlignment) % kDeviceAlignment, 0u);
    for (const MemoryBlock& block : blocks) EXPECT_EQ(block.offset % kDeviceAlignment, 0u);
  }
}

TEST(MemoryPlanner, WithoutReuseEveryBlockHasItsOwnBytes) {
  std::vector<MemoryBlock> blocks = RandomBlocks(7, 50, 20);
  PlanMemory(blocks, false);
  for (size_t i = 0; i < blocks.size(); ++i) {
    for (size_t j = 0; j < i; ++j) EXPECT_FALSE(Overlap(blocks[i], blocks[j]));
  }
}

TEST(MemoryPlanner, NothingTakesNothing) {
  std::vector<MemoryBlock> none, empty = {{0, 0, 3}, {0, 1, 2}};
  EXPECT_EQ(PlanMemory(none, true), 0u);
  EXPECT_EQ(PlanMemory(empty, true), 0u);
}

}  // namespace
}  // namespace caesura
