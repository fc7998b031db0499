// SPDX-License-Identifier: Apache-2.0
// Weighted sampling along one axis: each output index is a sum of a few input indices. Resizing
// applies it axis by axis; its transpose is the gradient (of padding by copies, too).
#ifndef CAESURA_CORE_KERNELS_WALKS_AXIS_TAPS_H_
#define CAESURA_CORE_KERNELS_WALKS_AXIS_TAPS_H_

#include <algorithm>
#include <cstdint>
#include <vector>

#include "core/kernels/simd/parallel.h"

namespace caesura {

// Output o is the sum over k < taps of weight[o * taps + k] * input[index[o * taps + k]]; where
// `outside[o]` is set it is the fill value instead. An axis of 0 taps stays as it is.
struct AxisTaps {
  int64_t in = 0, out = 0, taps = 0;
  std::vector<int64_t> index;
  std::vector<double> weight;
  std::vector<uint8_t> outside;
};

// The taps of one axis of a tensor seen as [outer, in, inner] -> [outer, out, inner], in type A
// (float or double).
template <typename A>
class TapPass {
 public:
  TapPass(const AxisTaps& taps, int64_t outer, int64_t inner)
      : taps_(taps),
        weight_(taps.weight.begin(), taps.weight.end()),
        outer_(outer),
        inner_(inner) {}

  int64_t input_elements() const { return outer_ * taps_.in * inner_; }
  int64_t output_elements() const { return outer_ * taps_.out * inner_; }

  void Apply(const A* x, A* y, A fill, int threads) const {
    const int64_t grain = std::max<int64_t>(
        1, kParallelGrain / std::max<int64_t>(1, taps_.taps * inner_ * taps_.out));
    ParallelFor(threads, outer_, grain, [&](int64_t first, int64_t last) {
      for (int64_t o = first; o < last; ++o) {
        const A* from = x + o * taps_.in * inner_;
        A* to = y + o * taps_.out * inner_;
        if (inner_ == 1) {
          ApplyLine(from, to, fill);
        } else {
          for (int64_t i = 0; i < taps_.out; ++i) ApplyRow(i, from, to + i * inner_, fill);
        }
      }
    });
  }

  // dx = the transposed taps applied to dy.
  void ApplyTransposed(const A* dy, A* dx, int threads) const {
    const int64_t grain = std::max<int64_t>(
        1, kParallelGrain / std::max<int64_t>(1, taps_.taps * inner_ * taps_.out));
    ParallelFor(threads, outer_, grain, [&](int64_t first, int64_t last) {
      std::fill(dx + first * taps_.in * inner_, dx + last * taps_.in * inner_, A(0));
      for (int64_t o = first; o < last; ++o) {
        for (int64_t i = 0; i < taps_.out; ++i) {
          ScatterRow(i, dy + (o * taps_.out + i) * inner_, dx + o * taps_.in * inner_);
        }
      }
    });
  }

 private:
  bool Outside(int64_t i) const { return !taps_.outside.empty() && taps_.outside[i] != 0; }

  void ApplyLine(const A* x, A* y, A fill) const {
    const int64_t *index = taps_.index.data(), taps = taps_.taps;
    const A* weight = weight_.data();
    for (int64_t i = 0; i < taps_.out; ++i, index += taps, weight += taps) {
      A sum = 0;
      for (int64_t k = 0; k < taps; ++k) sum += weight[k] * x[index[k]];
      y[i] = Outside(i) ? fill : sum;
    }
  }

  void ApplyRow(int64_t i, const A* x, A* y, A fill) const {
    std::fill(y, y + inner_, Outside(i) ? fill : A(0));
    if (Outside(i)) return;
    for (int64_t k = i * taps_.taps; k < (i + 1) * taps_.taps; ++k) {
      const A weight = weight_[k];
      const A* from = x + taps_.index[k] * inner_;
      for (int64_t j = 0; j < inner_; ++j) y[j] += weight * from[j];
    }
  }

  void ScatterRow(int64_t i, const A* dy, A* dx) const {
    if (Outside(i)) return;
    for (int64_t k = i * taps_.taps; k < (i + 1) * taps_.taps; ++k) {
      const A weight = weight_[k];
      A* to = dx + taps_.index[k] * inner_;
      for (int64_t j = 0; j < inner_; ++j) to[j] += weight * dy[j];
    }
  }

  AxisTaps taps_;
  std::vector<A> weight_;
  int64_t outer_, inner_;
};

}  // namespace caesura

#endif  // CAESURA_CORE_KERNELS_WALKS_AXIS_TAPS_H_
