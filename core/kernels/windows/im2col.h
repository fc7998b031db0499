// SPDX-License-Identifier: Apache-2.0
// Windows of an image as the columns of a matrix, and back: convolutions become matrix products.
// Plain code for every numeric type, with one to three spatial axes.
#ifndef CAESURA_CORE_KERNELS_WINDOWS_IM2COL_H_
#define CAESURA_CORE_KERNELS_WINDOWS_IM2COL_H_

#include <algorithm>
#include <cstdint>

#include "core/kernels/windows/pool_geometry.h"

namespace caesura {

// Calls fn(row of outputs, first, last, input offset of output 0, input step) for each line of
// outputs along the last axis that meets kernel position `k`: outputs [first, last) see the input,
// those outside see padding only.
template <typename Fn>
inline void ForEachLine(const Window3& w, int64_t k, Fn&& fn) {
  const int64_t k2 = k % w.kernel[2], k1 = k / w.kernel[2] % w.kernel[1],
                k0 = k / w.kernel[2] / w.kernel[1];
  const int64_t start = k2 * w.dilations[2] - w.pads[2], step = w.strides[2];
  const int64_t first = std::min(w.output[2], start >= 0 ? 0 : (-start + step - 1) / step);
  const int64_t room = w.input[2] - start;
  const int64_t last =
      std::max(first, std::min(w.output[2], room <= 0 ? 0 : (room - 1) / step + 1));
  for (int64_t o0 = 0; o0 < w.output[0]; ++o0) {
    const int64_t i0 = o0 * w.strides[0] - w.pads[0] + k0 * w.dilations[0];
    for (int64_t o1 = 0; o1 < w.output[1]; ++o1) {
      const int64_t i1 = o1 * w.strides[1] - w.pads[1] + k1 * w.dilations[1];
      const bool inside = i0 >= 0 && i0 < w.input[0] && i1 >= 0 && i1 < w.input[1];
      fn((o0 * w.output[1] + o1) * w.output[2], inside ? first : w.output[2],
         inside ? last : w.output[2], (i0 * w.input[1] + i1) * w.input[2] + start, step);
    }
  }
}

// columns[c, k, o] = x[c, where kernel position k of output o lies], or `padding` outside.
template <typename T>
void Im2Col(const Window3& w, int64_t channels, const T* x, T* columns, T padding = T(0)) {
  const int64_t kernel = w.KernelCount(), outputs = w.OutputCount(), inputs = w.InputCount();
  for (int64_t c = 0; c < channels; ++c) {
    for (int64_t k = 0; k < kernel; ++k) {
      T* row = columns + (c * kernel + k) * outputs;
      const T* image = x + c * inputs;
      ForEachLine(w, k, [&](int64_t line, int64_t first, int64_t last, int64_t at, int64_t step) {
        T* to = row + line;
        for (int64_t o = 0; o < first; ++o) to[o] = padding;
        for (int64_t o = first; o < last; ++o) to[o] = image[at + o * step];
        for (int64_t o = last; o < w.output[2]; ++o) to[o] = padding;
      });
    }
  }
}

// The transpose of Im2Col: adds each column entry to the input element that it came from.
template <typename T>
void Col2Im(const Window3& w, int64_t channels, const T* columns, T* x) {
  const int64_t kernel = w.KernelCount(), outputs = w.OutputCount(), inputs = w.InputCount();
  for (int64_t c = 0; c < channels; ++c) {
    for (int64_t k = 0; k < kernel; ++k) {
      const T* row = columns + (c * kernel + k) * outputs;
      T* image = x + c * inputs;
      ForEachLine(w, k, [&](int64_t line, int64_t first, int64_t last, int64_t at, int64_t step) {
        for (int64_t o = first; o < last; ++o) image[at + o * step] += row[line + o];
      });
    }
  }
}

}  // namespace caesura

#endif  // CAESURA_CORE_KERNELS_WINDOWS_IM2COL_H_
