// SPDX-License-Identifier: Apache-2.0
// Elements to and from the type in which kernels compute: Widen and Narrow. float16 and bfloat16
// compute in float, all others (strings, too) as themselves. Without branches, so that loops over
// float16 become vector code.
#ifndef CAESURA_CORE_KERNELS_SIMD_ARITHMETIC_TYPE_H_
#define CAESURA_CORE_KERNELS_SIMD_ARITHMETIC_TYPE_H_

#include <bit>
#include <cstdint>
#include <type_traits>

#include "core/tensor/dtype.h"

namespace caesura {

inline float WidenFloat16(uint16_t bits) {
  const uint32_t magnitude = bits & 0x7fffu;
  // Shifted into place the exponent is 112 too small; a multiplication puts that right, for
  // subnormals too.
  const uint32_t finite = std::bit_cast<uint32_t>(std::bit_cast<float>(magnitude << 13) * 0x1p112f);
  const uint32_t special = 0x7f800000u | (magnitude << 13);
  const uint32_t sign = static_cast<uint32_t>(bits & 0x8000u) << 16;
  return std::bit_cast<float>(sign | (magnitude >= 0x7c00u ? special : finite));
}

inline uint16_t NarrowFloat16(float value) {
  const uint32_t bits = std::bit_cast<uint32_t>(value), magnitude = bits & 0x7fffffffu;
  const uint32_t normal = (magnitude - (112u << 23) + 0xfffu + ((magnitude >> 13) & 1u)) >> 13;
  // Adding 0.5 rounds to the unit of subnormals, 2^-24.
  const uint32_t subnormal =
      std::bit_cast<uint32_t>(std::bit_cast<float>(magnitude) + 0.5f) - 0x3f000000u;
  const uint32_t nan = 0x7e00u | ((magnitude >> 13) & 0x3ffu);
  const uint32_t finite = magnitude < 0x38800000u ? subnormal : normal;
  const uint32_t bounded = magnitude >= 0x47800000u ? 0x7c00u : finite;
  const uint32_t rounded = magnitude > 0x7f800000u ? nan : bounded;
  return static_cast<uint16_t>(((bits >> 16) & 0x8000u) | rounded);
}

template <typename T>
const T& Widen(const T& x) {
  return x;
}
inline float Widen(const Float16& x) { return WidenFloat16(x.bits); }
inline float Widen(const BFloat16& x) { return BFloat16BitsToFloat(x.bits); }

template <typename T, typename V>
T Narrow(V value) {
  if constexpr (std::is_same_v<T, Float16>) {
    return Float16::FromBits(NarrowFloat16(static_cast<float>(value)));
  } else {
    return static_cast<T>(value);
  }
}

}  // namespace caesura

#endif  // CAESURA_CORE_KERNELS_SIMD_ARITHMETIC_TYPE_H_
