// SPDX-License-Identifier: Apache-2.0
// Output 0 as an area to add gradients into: itself, or scratch in float for float16 and bfloat16.
#ifndef CAESURA_CORE_KERNELS_WINDOWS_PLANE_SUMS_H_
#define CAESURA_CORE_KERNELS_WINDOWS_PLANE_SUMS_H_

#include "core/kernels/kernel.h"

namespace caesura {

template <typename T>
class PlaneSums {
 public:
  PlaneSums(KernelInfo& info, int64_t count) : count_(count) {
    if (!kDirect) scratch_ = info.BookScratch(count * sizeof(Accumulator<T>));
  }

  // Not zeroed.
  Accumulator<T>* Sums(KernelContext& context) const {
    if constexpr (kDirect) {
      return context.Output<T>(0);
    } else {
      return context.Scratch<Accumulator<T>>(scratch_);
    }
  }

  // Rounds the sums into the output.
  void Store(KernelContext& context) const {
    if constexpr (!kDirect) {
      T* y = context.Output<T>(0);
      const Accumulator<T>* sums = Sums(context);
      for (int64_t i = 0; i < count_; ++i) y[i] = static_cast<T>(sums[i]);
    }
  }

 private:
  static constexpr bool kDirect = std::is_same_v<T, Accumulator<T>>;
  int64_t count_;
  size_t scratch_ = 0;
};

}  // namespace caesura

#endif  // CAESURA_CORE_KERNELS_WINDOWS_PLANE_SUMS_H_
