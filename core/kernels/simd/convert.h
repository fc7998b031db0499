// SPDX-License-Identifier: Apache-2.0
// Conversion of one element between C++ element types with ONNX's Cast semantics. Where ONNX leaves
// the result open (a float that an integer cannot hold) it is what two's complement gives: the low
// bits of the truncated value, as PyTorch and NumPy have it; 0 for NaN. Values beyond int32 (int64
// for 64-bit types and uint32) count as the lowest one.
#ifndef CAESURA_CORE_KERNELS_SIMD_CONVERT_H_
#define CAESURA_CORE_KERNELS_SIMD_CONVERT_H_

#include <cmath>
#include <cstdint>
#include <limits>
#include <type_traits>

#include "core/kernels/simd/arithmetic_type.h"
#include "core/kernels/simd/small_types.h"
#include "core/tensor/dtype.h"

namespace caesura {

// A real as an integer of type I (int32_t or int64_t), without undefined behaviour and without a
// branch.
template <typename I, typename F>
I TruncatedTo(F x) {
  constexpr F kBound =
      static_cast<F>(-static_cast<double>(std::numeric_limits<I>::lowest()));  // 2^31 or 2^63
  const bool fits = x >= -kBound && x < kBound;
  const I truncated = static_cast<I>(fits ? x : F{0});
  return fits || x != x ? truncated : std::numeric_limits<I>::lowest();
}

template <typename To, typename F>
To IntegerFromReal(F x) {
  if constexpr (sizeof(To) < 4 || std::is_same_v<To, int32_t>) {
    return static_cast<To>(TruncatedTo<int32_t>(x));
  } else if constexpr (std::is_same_v<To, uint64_t>) {
    constexpr F kHalf = static_cast<F>(9223372036854775808.0);  // 2^63
    const bool upper = x >= kHalf;
    const auto low = static_cast<uint64_t>(TruncatedTo<int64_t>(upper ? x - kHalf : x));
    return upper ? low + (uint64_t{1} << 63) : low;
  } else {
    return static_cast<To>(TruncatedTo<int64_t>(x));
  }
}

template <typename T>
inline constexpr bool kIsHalf = std::is_same_v<T, Float16> || std::is_same_v<T, BFloat16>;

template <typename To, typename From>
To ConvertElement(From x) {
  if constexpr (std::is_same_v<To, From>) {
    return x;
  } else if constexpr (kIsHalf<From>) {
    return ConvertElement<To>(Widen(x));
  } else if constexpr (std::is_same_v<To, bool>) {
    return x != 0;
  } else if constexpr (kIsHalf<To>) {
    // One rounding, not two: what float cannot hold goes through round-to-odd.
    if constexpr (std::is_same_v<From, float> || sizeof(From) < 4)
      return Narrow<To>(static_cast<float>(x));
    return Narrow<To>(RoundToOdd(static_cast<double>(x)));
  } else if constexpr (std::is_integral_v<To> && std::is_floating_point_v<From>) {
    return IntegerFromReal<To>(x);
  } else {
    return static_cast<To>(x);
  }
}

}  // namespace caesura

#endif  // CAESURA_CORE_KERNELS_SIMD_CONVERT_H_
