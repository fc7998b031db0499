// SPDX-License-Identifier: Apache-2.0
// For gemm_tiles.cc and gemm_blocks.cc only: the output of a product of float32 or float64, and
// the completion of its sums. All of it inlines into a loop under OnBestTiles.
#ifndef CAESURA_CORE_KERNELS_GEMM_GEMM_TARGET_H_
#define CAESURA_CORE_KERNELS_GEMM_GEMM_TARGET_H_

#include "core/kernels/gemm/gemm_spec.h"

namespace caesura {

// C, and the terms that are added to it while a product is written.
template <typename T>
struct GemmTarget {
  const GemmSpec& s;
  bool add;  // to the numbers that C holds
  T* c;
  const T *bias, *addend;  // or null
};

// Completes a sum, or a vector of sums, for C at `place`.
template <typename T, typename Sum, typename Add>
inline void FinishSum(const GemmTarget<T>& to, int64_t place, int64_t column, Sum& sum, Add add) {
  if (to.s.alpha != 1) sum = static_cast<T>(to.s.alpha) * sum;
  if (to.add) add(sum, to.c + place);
  if (to.bias != nullptr) add(sum, to.bias + column);
  if (to.addend != nullptr) add(sum, to.addend + place);
}

template <typename R, typename T>
inline void WriteVector(const GemmTarget<T>& to, int64_t place, int64_t column,
                        const typename R::Floats& value) {
  typename R::Floats sum = value;
  FinishSum(to, place, column, sum,
            [](typename R::Floats& total, const T* p) { total += R::AtLoose(p).floats; });
  R::Store(to.c + place, sum);
}

// Writes [rows][columns] sums, whose rows are `step` apart, to C from `row` and `column` on.
template <typename R, typename T>
inline void WriteBlock(const GemmTarget<T>& to, const T* sums, int64_t step, int64_t row,
                       int64_t rows, int64_t column, int64_t columns) {
  for (int64_t r = 0; r < rows; ++r, sums += step) {
    const int64_t first = (row + r) * to.s.c.row + column;
    int64_t j = 0;
    for (; j + R::kWidth <= columns; j += R::kWidth)
      WriteVector<R>(to, first + j, column + j, R::AtLoose(sums + j).floats);
    for (; j < columns; ++j) {
      T sum = sums[j];
      FinishSum(to, first + j, column + j, sum, [](T& total, const T* p) { total += *p; });
      to.c[first + j] = sum;
    }
  }
}

}  // namespace caesura

#endif  // CAESURA_CORE_KERNELS_GEMM_GEMM_TARGET_H_
