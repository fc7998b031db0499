// SPDX-License-Identifier: Apache-2.0
// The elements of many tensors cut into blocks of fixed size, so that one parallel loop covers them
// all and sums over them do not depend on the number of threads.
#ifndef CAESURA_CORE_OPS_OPTIMIZER_PARAMETER_BLOCKS_H_
#define CAESURA_CORE_OPS_OPTIMIZER_PARAMETER_BLOCKS_H_

#include <algorithm>
#include <cstdint>
#include <vector>

#include "core/kernels/simd/parallel.h"
#include "core/tensor/dtype.h"

namespace caesura {

class ParameterBlocks {
 public:
  // Small enough to stay in the first cache with its gradient and states.
  static constexpr int64_t kBlockSize = 2048;

  struct Block {
    int tensor;
    int64_t first, count;
  };

  void AddTensor(int tensor, int64_t elements) {
    for (int64_t first = 0; first < elements; first += kBlockSize) {
      const int64_t count = std::min(kBlockSize, elements - first);
      blocks_.push_back({tensor, first, count});
      starts_.push_back(total_);
      total_ += count;
    }
  }
  const std::vector<Block>& blocks() const { return blocks_; }

  // Calls fn(block number) for every block; threads share the elements, not the blocks, evenly.
  // `work` is about the operations that an element takes.
  template <typename Fn>
  void ForEach(int threads, int64_t work, Fn&& fn) const {
    ParallelFor(threads, total_, kParallelGrain / work, [&](int64_t first, int64_t last) {
      const size_t begin =
          std::lower_bound(starts_.begin(), starts_.end(), first) - starts_.begin();
      for (size_t b = begin; b < blocks_.size() && starts_[b] < last; ++b) fn(b);
    });
  }

 private:
  std::vector<Block> blocks_;
  std::vector<int64_t> starts_;  // elements before each block
  int64_t total_ = 0;
};

// In double, over lanes of its own each, so that the compiler may keep them in vectors.
template <typename T>
double SumOfSquares(const T* x, int64_t count) {
  constexpr int kLanes = 8;
  double lanes[kLanes] = {};
  int64_t i = 0;
  for (; i + kLanes <= count; i += kLanes) {
    for (int k = 0; k < kLanes; ++k) {
      const double value = static_cast<double>(static_cast<Accumulator<T>>(x[i + k]));
      lanes[k] += value * value;
    }
  }
  for (; i < count; ++i) {
    const double value = static_cast<double>(static_cast<Accumulator<T>>(x[i]));
    lanes[0] += value * value;
  }
  double sum = 0;
  for (double lane : lanes) sum += lane;
  return sum;
}

}  // namespace caesura

#endif  // CAESURA_CORE_OPS_OPTIMIZER_PARAMETER_BLOCKS_H_
