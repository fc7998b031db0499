// SPDX-License-Identifier: Apache-2.0
#include "core/plan/memory_planner.h"

#include <algorithm>
#include <iterator>
#include <numeric>
#include <utility>

namespace caesura {
namespace {

// The placed blocks by the steps that they are alive in: a segment tree over steps, a block in at
// most two nodes a level. Few of them are a list by offset, which takes no time to set up: plans
// are resized between two runs.
class PlacedBlocks {
 public:
  PlacedBlocks(const std::vector<MemoryBlock>& blocks, int steps)
      : blocks_(blocks), is_list_(blocks.size() <= kList) {
    if (is_list_) return;
    seen_.resize(blocks.size(), -1);
    while (leaves_ < steps) leaves_ *= 2;
    here_.resize(2 * leaves_);
    below_.resize(2 * leaves_, 0);
  }

  void Add(int i) {
    if (!is_list_) return Add(i, 1, 0, leaves_);
    const auto behind = [&](int a, int b) { return blocks_[a].offset < blocks_[b].offset; };
    list_.insert(std::upper_bound(list_.begin(), list_.end(), i, behind), i);
  }
  // Blocks alive at the same time as block `i`, by offset.
  const std::vector<int>& Overlapping(int i) {
    found_.clear();
    if (is_list_) {
      std::copy_if(list_.begin(), list_.end(), std::back_inserter(found_), [&](int j) {
        return blocks_[j].first <= blocks_[i].last && blocks_[i].first <= blocks_[j].last;
      });
      return found_;
    }
    Collect(i, 1, 0, leaves_);
    std::sort(found_.begin(), found_.end(),
              [&](int a, int b) { return blocks_[a].offset < blocks_[b].offset; });
    return found_;
  }

 private:
  bool Covers(int i, int begin, int end) const {
    return blocks_[i].first <= begin && end - 1 <= blocks_[i].last;
  }
  bool Misses(int i, int begin, int end) const {
    return blocks_[i].last < begin || end <= blocks_[i].first;
  }

  void Add(int i, int node, int begin, int end) {
    if (Misses(i, begin, end)) return;
    below_[node] = 1;
    if (Covers(i, begin, end) || end - begin == 1) return here_[node].push_back(i);
    const int middle = (begin + end) / 2;
    Add(i, 2 * node, begin, middle);
    Add(i, 2 * node + 1, middle, end);
  }
  void Collect(int i, int node, int begin, int end) {
    if (!below_[node] || Misses(i, begin, end)) return;
    for (int j : here_[node]) {
      if (std::exchange(seen_[j], i) != i) found_.push_back(j);
    }
    if (end - begin == 1) return;
    const int middle = (begin + end) / 2;
    Collect(i, 2 * node, begin, middle);
    Collect(i, 2 * node + 1, middle, end);
  }

  static constexpr size_t kList = 256;

  const std::vector<MemoryBlock>& blocks_;
  const bool is_list_;
  std::vector<int> list_;  // or:
  int leaves_ = 1;
  std::vector<std::vector<int>>
      here_;  // by node: blocks alive in all of its steps, but not in all of its parent's
  std::vector<char> below_;  // by node: whether there are blocks at or under it
  std::vector<int> seen_;    // by block: the last one that it was found for
  std::vector<int> found_;
};

}  // namespace

size_t PlanMemory(std::vector<MemoryBlock>& blocks, bool reuse, size_t alignment) {
  auto align = [alignment](size_t bytes) {
    return (bytes + alignment - 1) / alignment * alignment;
  };
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
  std::stable_sort(order.begin(), order.end(),
                   [&](int a, int b) { return blocks[a].bytes > blocks[b].bytes; });
  int steps = 1;
  for (const MemoryBlock& block : blocks) steps = std::max(steps, block.last + 1);
  PlacedBlocks placed(blocks, steps);
  for (int i : order) {
    MemoryBlock& block = blocks[i];
    if (block.bytes == 0) continue;  // needs no place; most steps book no scratch
    size_t candidate = 0;
    for (int j : placed.Overlapping(i)) {
      const MemoryBlock& other = blocks[j];
      if (candidate + align(block.bytes) <= other.offset) break;
      candidate = std::max(candidate, other.offset + align(other.bytes));
    }
    block.offset = candidate;
    arena = std::max(arena, candidate + align(block.bytes));
    placed.Add(i);
  }
  return arena;
}

}  // namespace caesura
