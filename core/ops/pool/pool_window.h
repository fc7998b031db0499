// SPDX-License-Identifier: Apache-2.0
// Loops over pooling windows that MaxPool, AveragePool and their gradients share. An image is one
// channel of one sample.
#ifndef CAESURA_CORE_OPS_POOL_POOL_WINDOW_H_
#define CAESURA_CORE_OPS_POOL_POOL_WINDOW_H_

#include <algorithm>
#include <limits>
#include <utility>
#include <vector>

#include "core/kernels/windows/im2col.h"
#include "core/kernels/simd/best_isa.h"
#include "core/kernels/simd/parallel.h"
#include "core/kernels/simd/row_math.h"
#include "core/kernels/capped_product.h"
#include "core/kernels/windows/pool_geometry.h"

namespace caesura {

// A thread is worth it from this many images on.
inline int64_t PoolGrain(const Window3& w) {
  return 1 + kParallelGrain / (CappedProduct({w.OutputCount(), w.KernelCount()}) + 1);
}

// The maximum of one window, as MaxOfWindows gives it; -1 for the place of an empty window.
template <typename T>
std::pair<T, int32_t> MaxOfWindow(const Window3& w, const int64_t (&output)[3], T lowest,
                                  const T* x) {
  int64_t start[3], first[3], last[3];  // kernel positions [first, last) see the input
  for (int a = 0; a < 3; ++a) {
    const int64_t step = w.dilations[a];
    start[a] = output[a] * w.strides[a] - w.pads[a];
    first[a] = start[a] >= 0 ? 0 : (-start[a] + step - 1) / step;
    last[a] =
        start[a] >= w.input[a] ? 0 : std::min(w.kernel[a], (w.input[a] - start[a] - 1) / step + 1);
  }
  std::pair<T, int32_t> best{lowest, -1};
  const int64_t count = last[2] - first[2], step = w.dilations[2];
  for (int64_t k0 = first[0]; count > 0 && k0 < last[0]; ++k0) {
    for (int64_t k1 = first[1]; k1 < last[1]; ++k1) {
      const int64_t i0 = start[0] + k0 * w.dilations[0], i1 = start[1] + k1 * w.dilations[1],
                    from = (i0 * w.input[1] + i1) * w.input[2] + start[2] + first[2] * step;
      const T* line = x + from;
      // Without places at first: so it runs in vectors.
      T lanes[kLanes];
      bool nan = false;
      std::fill_n(lanes, kLanes, line[0]);
      int64_t i = 0;
      for (; i + kLanes <= count; i += kLanes) {
        for (int64_t l = 0; l < kLanes; ++l) {
          const T v = line[(i + l) * step];
          lanes[l] = v > lanes[l] ? v : lanes[l];
          nan |= v != v;
        }
      }
      for (; i < count; ++i) {
        const T v = line[i * step];
        lanes[0] = v > lanes[0] ? v : lanes[0];
        nan |= v != v;
      }
      if (nan) {
        for (i = count - 1; line[i * step] == line[i * step];) --i;
      } else {
        const T most = *std::max_element(lanes, lanes + kLanes);
        if (best.second >= 0 && !(most > best.first)) continue;
        for (i = 0; line[i * step] != most;) ++i;
      }
      best = {line[i * step], static_cast<int32_t>(from + i * step)};
    }
  }
  return best;
}

// y[o] = the maximum of window o; NaN wins. `at`, where wanted, is the place of the first maximum
// in the image, of the last NaN.
template <typename T>
void MaxOfWindows(const Window3& w, const T* x, T* y, int32_t* at) {
  const int64_t outputs = w.OutputCount();
  const T lowest = std::numeric_limits<T>::has_infinity
                       ? static_cast<T>(-std::numeric_limits<T>::infinity())
                       : std::numeric_limits<T>::lowest();
  // Long lines of a few windows: each window by itself.
  if (w.kernel[2] >= kLanes && w.output[2] <= w.kernel[2]) {
    OnBestIsa([&] {
      for (int64_t o = 0; o < outputs; ++o) {
        const int64_t place[3] = {o / w.output[2] / w.output[1], o / w.output[2] % w.output[1],
                                  o % w.output[2]};
        const auto [value, index] = MaxOfWindow(w, place, lowest, x);
        y[o] = value;
        if (at != nullptr) at[o] = index;
      }
    });
    return;
  }
  std::fill_n(y, outputs, lowest);
  if (at != nullptr) std::fill_n(at, outputs, -1);
  for (int64_t k = 0; k < w.KernelCount(); ++k) {
    ForEachLine(w, k, [&](int64_t line, int64_t first, int64_t last, int64_t from, int64_t step) {
      if (at == nullptr) {
        for (int64_t o = first; o < last; ++o) {
          const T v = x[from + o * step], best = y[line + o];
          y[line + o] = (v > best || v != v) ? v : best;
        }
        return;
      }
      for (int64_t o = first; o < last; ++o) {
        const T v = x[from + o * step], best = y[line + o];
        const bool wins = v > best || v != v || at[line + o] < 0;
        y[line + o] = wins ? v : best;
        at[line + o] = wins ? static_cast<int32_t>(from + o * step) : at[line + o];
      }
    });
  }
}

// The divisor of each window's sum in AveragePool: its elements inside the input, or with
// `include_pad` also those in the padding (but not beyond it, where ceil_mode makes the last window
// overhang).
template <typename T>
std::vector<T> WindowReciprocals(const WindowGeometry& g, bool include_pad) {
  std::vector<T> out(g.OutputCount());
  for (int64_t o = 0; o < static_cast<int64_t>(out.size()); ++o) {
    int64_t rest = o, count = 1;
    for (int a = g.rank() - 1; a >= 0; --a) {
      const int64_t start = rest % g.output[a] * g.strides[a] - g.pads_begin[a];
      rest /= g.output[a];
      const int64_t low = include_pad ? -g.pads_begin[a] : 0;
      const int64_t high = include_pad ? g.input[a] + g.pads_end[a] : g.input[a];
      const int64_t step = g.dilations[a];  // positions k with low <= start + k * step < high
      const int64_t first = start >= low ? 0 : (low - start + step - 1) / step;
      const int64_t end = start >= high ? 0 : std::min(g.kernel[a], (high - start - 1) / step + 1);
      count *= std::max<int64_t>(0, end - first);
    }
    out[o] = count == 0 ? T(0) : T(1) / static_cast<T>(count);
  }
  return out;
}

}  // namespace caesura

#endif  // CAESURA_CORE_OPS_POOL_POOL_WINDOW_H_
