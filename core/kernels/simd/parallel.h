// SPDX-License-Identifier: Apache-2.0
// Parallel loops over OpenMP, the one thread pool of the process (oneDNN and LibTorch share it).
#ifndef CAESURA_CORE_KERNELS_SIMD_PARALLEL_H_
#define CAESURA_CORE_KERNELS_SIMD_PARALLEL_H_

#include <algorithm>
#include <atomic>
#include <cstdint>

namespace caesura {

// Items below which a loop is not worth a second thread, for about one floating-point operation an
// item.
inline constexpr int64_t kParallelGrain = 16384;

// Calls fn(first, last) over disjoint ranges that cover [0, count). One call on this thread when
// `threads` is 1 or `count` is below 2 * grain. The split depends only on the arguments, so results
// repeat. `fn` must not throw.
template <typename Fn>
void ParallelFor(int threads, int64_t count, int64_t grain, Fn&& fn) {
  const int64_t parts = std::min<int64_t>(threads, count / std::max<int64_t>(1, grain));
  if (parts <= 1) {
    if (count > 0) fn(int64_t{0}, count);
    return;
  }
#pragma omp parallel for num_threads(static_cast<int>(parts)) schedule(static, 1)
  for (int64_t part = 0; part < parts; ++part) {
    fn(count * part / parts, count * (part + 1) / parts);
  }
}

// The items [0, count), for threads that come for the next one when they have done with their last:
// a thread whose core is busy with others' work gets fewer. What comes of an item must not depend
// on who takes it.
class WorkQueue {
 public:
  explicit WorkQueue(int64_t count) : count_(count) {}
  // False when nothing is left.
  bool Take(int64_t* item) {
    *item = next_.fetch_add(1, std::memory_order_relaxed);
    return *item < count_;
  }

 private:
  const int64_t count_;
  std::atomic<int64_t> next_{0};
};

}  // namespace caesura

#endif  // CAESURA_CORE_KERNELS_SIMD_PARALLEL_H_
