// SPDX-License-Identifier: Apache-2.0
// Taps along several axes of a tensor, one pass after the other, forth (Resize) or back
// (ResizeGrad, PadGrad).
#ifndef CAESURA_CORE_KERNELS_WALKS_TAP_CHAIN_H_
#define CAESURA_CORE_KERNELS_WALKS_TAP_CHAIN_H_

#include <cmath>
#include <limits>
#include <vector>

#include "core/kernels/walks/axis_taps.h"
#include "core/kernels/kernel.h"

namespace caesura {

// An interpolated value as a T: integers are rounded to even and held in range.
template <typename T, typename A>
T FromSum(A value) {
  if constexpr (std::is_integral_v<T>) {
    const double low = static_cast<double>(std::numeric_limits<T>::min());
    const double high = static_cast<double>(std::numeric_limits<T>::max());
    const double rounded = std::nearbyint(static_cast<double>(value));
    if (!(rounded > low)) return std::numeric_limits<T>::min();
    return rounded >= high ? std::numeric_limits<T>::max() : static_cast<T>(rounded);
  } else {
    return static_cast<T>(value);
  }
}

// Input 0 and output 0 are of type T, sums of type A (float or double).
template <typename T, typename A>
class TapChain {
 public:
  // `shape` is that of the tensor before the taps; with `transposed`, the chain leads back to it.
  // Books scratch.
  TapChain(KernelInfo& info, Shape shape, const std::vector<AxisTaps>& axes, bool transposed,
           double fill)
      : transposed_(transposed), fill_(static_cast<A>(fill)), threads_(info.threads()) {
    std::vector<int> order;
    for (int a = 0; a < shape.rank(); ++a) {
      if (axes[a].taps > 0) order.push_back(a);
    }
    // Axes that shrink come first: less is left for the others.
    std::stable_sort(order.begin(), order.end(), [&](int a, int b) {
      return axes[a].out * axes[b].in < axes[b].out * axes[a].in;
    });
    const int64_t before = shape.elements();
    int64_t largest = before;
    for (int a : order) {
      passes_.emplace_back(axes[a], shape.Elements(0, a), shape.Elements(a + 1, shape.rank()));
      shape[a] = axes[a].out;
      largest = std::max(largest, shape.elements());
    }
    if (transposed) std::reverse(passes_.begin(), passes_.end());
    input_count_ = transposed ? shape.elements() : before;
    output_count_ = transposed ? before : shape.elements();
    for (size_t& area : scratch_) area = info.BookScratch(largest * sizeof(A));
  }

  void Run(KernelContext& context) const {
    T* y = context.Output<T>(0);
    const A* from = Start(context);
    for (size_t p = 0; p < passes_.size(); ++p) {
      A* to = context.Scratch<A>(scratch_[p % 2]);
      if constexpr (kDirect) {
        if (p + 1 == passes_.size()) to = y;
      }
      if (transposed_) {
        passes_[p].ApplyTransposed(from, to, threads_);
      } else {
        passes_[p].Apply(from, to, fill_, threads_);
      }
      from = to;
    }
    if (kDirect && !passes_.empty()) return;
    for (int64_t i = 0; i < output_count_; ++i) y[i] = FromSum<T>(from[i]);
  }

 private:
  static constexpr bool kDirect = std::is_same_v<T, A>;

  // The input in type A; a conversion goes to the area that the first pass does not write.
  const A* Start(KernelContext& context) const {
    const T* x = context.Input<T>(0);
    if constexpr (kDirect) {
      return x;
    } else {
      A* converted = context.Scratch<A>(scratch_[1]);
      for (int64_t i = 0; i < input_count_; ++i) converted[i] = static_cast<A>(x[i]);
      return converted;
    }
  }

  std::vector<TapPass<A>> passes_;
  bool transposed_;
  A fill_;
  int threads_;
  size_t scratch_[2] = {0, 0};
  int64_t input_count_ = 0, output_count_ = 0;
};

}  // namespace caesura

#endif  // CAESURA_CORE_KERNELS_WALKS_TAP_CHAIN_H_
