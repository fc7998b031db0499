// SPDX-License-Identifier: Apache-2.0
// Reductions and maps over contiguous rows, in an order that depends on the length alone. Sums run
// in sixteen lanes, which the compiler turns into vectors, and in runs that are added in float64:
// so the rounding of a long float sum stays as small as a short one's.
#ifndef CAESURA_CORE_KERNELS_SIMD_ROW_MATH_H_
#define CAESURA_CORE_KERNELS_SIMD_ROW_MATH_H_

#include <algorithm>
#include <cassert>
#include <cmath>
#include <cstdint>
#include <utility>

#include "core/tensor/dtype.h"

namespace caesura {

inline constexpr int64_t kLanes = 16;
inline constexpr int64_t kRun = 1024;

// The sum of term(i) over [0, n), which must inline.
template <typename Acc, typename Term>
inline Acc LaneSum(int64_t n, Term term) {
  double sum = 0;
  for (int64_t i = 0; i < n;) {
    Acc lanes[kLanes] = {};
    const int64_t end = std::min(n, i + kRun);
    for (; i + kLanes <= end; i += kLanes) {
      for (int64_t l = 0; l < kLanes; ++l) lanes[l] += term(i + l);
    }
    for (int64_t l = 0; i < end; ++i, ++l) lanes[l] += term(i);
    for (int64_t half = kLanes / 2; half > 0; half /= 2) {
      for (int64_t l = 0; l < half; ++l) lanes[l] += lanes[l + half];
    }
    sum += lanes[0];
  }
  return static_cast<Acc>(sum);
}

// Two sums in one pass: term(i, &first, &second) sets what element i adds to each.
template <typename Acc, typename Term>
inline std::pair<Acc, Acc> LaneSums(int64_t n, Term term) {
  double sums[2] = {};
  for (int64_t i = 0; i < n;) {
    Acc first[kLanes] = {}, second[kLanes] = {};
    auto add = [&](int64_t at, int64_t lane) {
      Acc a, b;
      term(at, &a, &b);
      first[lane] += a;
      second[lane] += b;
    };
    const int64_t end = std::min(n, i + kRun);
    for (; i + kLanes <= end; i += kLanes) {
#pragma omp simd
      for (int64_t l = 0; l < kLanes; ++l) add(i + l, l);
    }
    for (int64_t l = 0; i < end; ++i, ++l) add(i, l);
    for (int64_t half = kLanes / 2; half > 0; half /= 2) {
      for (int64_t l = 0; l < half; ++l) first[l] += first[l + half];
      for (int64_t l = 0; l < half; ++l) second[l] += second[l + half];
    }
    sums[0] += first[0];
    sums[1] += second[0];
  }
  return {static_cast<Acc>(sums[0]), static_cast<Acc>(sums[1])};
}

// The largest term(i) over [0, n), n > 0; any of them where one is NaN.
template <typename Acc, typename Term>
inline Acc LaneMax(int64_t n, Term term) {
  Acc lanes[kLanes];
  for (Acc& lane : lanes) lane = term(0);
  int64_t i = 0;
  for (; i + kLanes <= n; i += kLanes) {
    for (int64_t l = 0; l < kLanes; ++l) lanes[l] = term(i + l) > lanes[l] ? term(i + l) : lanes[l];
  }
  for (int64_t l = 0; i < n; ++i, ++l) lanes[l] = term(i) > lanes[l] ? term(i) : lanes[l];
  for (int64_t half = kLanes / 2; half > 0; half /= 2) {
    for (int64_t l = 0; l < half; ++l)
      lanes[l] = lanes[l + half] > lanes[l] ? lanes[l + half] : lanes[l];
  }
  return lanes[0];
}

template <typename T>
inline Accumulator<T> RowSum(const T* x, int64_t n) {
  using Acc = Accumulator<T>;
  return LaneSum<Acc>(n, [x](int64_t i) { return static_cast<Acc>(x[i]); });
}

// Sum of squares of x - shift.
template <typename T>
inline Accumulator<T> RowSquares(const T* x, int64_t n, Accumulator<T> shift) {
  using Acc = Accumulator<T>;
  return LaneSum<Acc>(n, [x, shift](int64_t i) {
    const Acc d = static_cast<Acc>(x[i]) - shift;
    return d * d;
  });
}

template <typename T>
inline Accumulator<T> RowDot(const T* x, const T* y, int64_t n) {
  using Acc = Accumulator<T>;
  return LaneSum<Acc>(
      n, [x, y](int64_t i) { return static_cast<Acc>(x[i]) * static_cast<Acc>(y[i]); });
}

// REQUIRES: n > 0. NaN where the row holds one.
template <typename T>
inline Accumulator<T> RowMax(const T* x, int64_t n) {
  using Acc = Accumulator<T>;
  assert(n > 0);
  Acc best = x[0];
  for (int64_t i = 1; i < n; ++i) {
    const Acc v = x[i];
    best = (v > best || v != v) ? v : best;
  }
  return best;
}

// dst = the numbers of a float tensor of any width.
template <typename To>
inline void LoadFloats(DType dtype, const void* src, int64_t n, To* dst) {
  DispatchFloat(dtype, [&](auto tag) {
    using From = typename decltype(tag)::type;
    const From* x = static_cast<const From*>(src);
    for (int64_t i = 0; i < n; ++i) dst[i] = static_cast<To>(static_cast<Accumulator<From>>(x[i]));
  });
}

// The opposite.
template <typename From>
inline void StoreFloats(DType dtype, const From* src, int64_t n, void* dst) {
  DispatchFloat(dtype, [&](auto tag) {
    using To = typename decltype(tag)::type;
    To* y = static_cast<To*>(dst);
    for (int64_t i = 0; i < n; ++i) y[i] = static_cast<To>(static_cast<Accumulator<To>>(src[i]));
  });
}

}  // namespace caesura

#endif  // CAESURA_CORE_KERNELS_SIMD_ROW_MATH_H_
