// SPDX-License-Identifier: Apache-2.0
// A tensor around one of its axes, for kernels that work along that axis.
#ifndef CAESURA_CORE_OPS_REDUCTION_AXIS_VIEW_H_
#define CAESURA_CORE_OPS_REDUCTION_AXIS_VIEW_H_

#include <algorithm>
#include <cstdint>

#include "core/kernels/simd/parallel.h"
#include "core/tensor/tensor.h"

namespace caesura {

inline constexpr int64_t kAxisColumns = 256;

// A tensor seen as [outer, count, inner] around the axis.
struct AxisView {
  int64_t outer, count, inner;
  int64_t column_blocks() const { return (inner + kAxisColumns - 1) / kAxisColumns; }
  // Blocks of columns that are worked off one by one, and how many of them are worth a thread.
  int64_t items() const { return outer * column_blocks(); }
  int64_t grain() const {
    return std::max<int64_t>(
        1, kParallelGrain / std::max<int64_t>(1, count * std::min(inner, kAxisColumns)));
  }
};

inline AxisView ViewAxis(const Shape& shape, int axis) {
  return {shape.Elements(0, axis), shape[axis], shape.Elements(axis + 1, shape.rank())};
}

// Calls fn(offset of the block's first element, columns) for the blocks of `view` on some thread.
template <typename Fn>
void ForColumnBlocks(const AxisView& view, int threads, Fn fn) {
  ParallelFor(threads, view.items(), view.grain(), [&](int64_t first, int64_t last) {
    for (int64_t item = first; item < last; ++item) {
      const int64_t outer = item / view.column_blocks(),
                    column = item % view.column_blocks() * kAxisColumns;
      fn(outer, column, std::min(kAxisColumns, view.inner - column));
    }
  });
}

// NaN, for types that have it.
template <typename T>
bool IsNaN(const T& x) {
  return x != x;
}

}  // namespace caesura

#endif  // CAESURA_CORE_OPS_REDUCTION_AXIS_VIEW_H_
