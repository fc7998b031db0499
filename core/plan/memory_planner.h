// SPDX-License-Identifier: Apache-2.0
// Offsets for blocks whose lifetimes are known, so that blocks alive at the same time never
// overlap.
#ifndef CAESURA_CORE_PLAN_MEMORY_PLANNER_H_
#define CAESURA_CORE_PLAN_MEMORY_PLANNER_H_

#include <cstddef>
#include <vector>

#include "core/tensor/tensor.h"

namespace caesura {

struct MemoryBlock {
  size_t bytes;
  int first;  // alive in [first, last], both included
  int last;
  size_t offset = 0;  // the result: a multiple of the alignment
};

// Fills in the offsets and returns the arena's size. Largest blocks first, each at the lowest
// offset that is free for its whole life (greedy by size: Pisarchyk and Lee, "Efficient Memory
// Management for Deep Neural Net Inference", 2020). `reuse` false gives each block bytes of its
// own.
size_t PlanMemory(std::vector<MemoryBlock>& blocks, bool reuse,
                  size_t alignment = kBufferAlignment);

}  // namespace caesura

#endif  // CAESURA_CORE_PLAN_MEMORY_PLANNER_H_
