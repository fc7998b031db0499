// SPDX-License-Identifier: Apache-2.0
#include "core/plan/memory_planner.h"

#include <algorithm>
#include <numeric>

#include "core/tensor/buffer.h"

namespace caesura {

size_t PlanMemory(std::vector<MemoryBlock>& blocks, bool reuse) {
  auto align = [](size_t bytes) { return (bytes + kBufferAlignment - 1) / kBufferAlignment * kBufferAlignment; };
  size_t arena = 0;
  if (!reuse) {
    for (MemoryBlock& block : blocks) {
      block.offset = arena;
      arena += align(block.bytes);
    }
    return arena;
  }
  std::vector<int> order(blocks.size());
  std::iota(order.begin(), order.end(), 0);
  std::stable_sort(order.begin(), order.end(), [&](int a, int b) { return blocks[a].bytes > blocks[b].bytes; });
  std::vector<int> placed;  // by offset
  for (int i : order) {
    MemoryBlock& block = blocks[i];
    if (block.bytes == 0) continue;  // needs no place; most steps book no scratch
    size_t candidate = 0;
    for (int j : placed) {
      const MemoryBlock& other = blocks[j];
      if (other.last < block.first || block.last < other.first) continue;
      if (candidate + align(block.bytes) <= other.offset) break;
      candidate = std::max(candidate, other.offset + align(other.bytes));
    }
    block.offset = candidate;
    arena = std::max(arena, candidate + align(block.bytes));
    placed.insert(std::upper_bound(placed.begin(), placed.end(), i,
                                   [&](int a, int b) { return blocks[a].offset < blocks[b].offset; }),
                  i);
  }
  return arena;
}

}  // namespace caesura
