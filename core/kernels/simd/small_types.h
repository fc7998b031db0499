// SPDX-License-Identifier: Apache-2.0
// Element types that have no C++ type: 8- and 4-bit floats and integers below a byte, one byte an
// element in memory. Integers lie sign-extended in their byte (int4 -3 is 0xfd); whatever is read,
// only the low bits count.
#ifndef CAESURA_CORE_KERNELS_SIMD_SMALL_TYPES_H_
#define CAESURA_CORE_KERNELS_SIMD_SMALL_TYPES_H_

#include <array>
#include <cstdint>
#include <optional>
#include <string>

#include "core/tensor/dtype.h"

namespace caesura {

inline constexpr DTypeSet kFloat8Types = {DType::kFloat8E4M3FN, DType::kFloat8E4M3FNUZ,
                                          DType::kFloat8E5M2, DType::kFloat8E5M2FNUZ};
inline constexpr DTypeSet kSubByteIntegers = {DType::kInt4, DType::kUInt4, DType::kInt2,
                                              DType::kUInt2};
inline constexpr DTypeSet kSmallTypes =
    kFloat8Types | kSubByteIntegers | DTypeSet{DType::kFloat4E2M1, DType::kFloat8E8M0};

// The value of each byte; also for int8, uint8 and bool. REQUIRES: a type of one byte.
std::array<float, 256> DecodeTable(DType dtype);

// The least and greatest value of an integer type of at most 32 bits.
struct IntegerRange {
  double lowest;
  double highest;
};
IntegerRange RangeOf(DType dtype);

// An integer type below a byte from an integer: the low bits, sign-extended where the type is
// signed.
uint8_t WrapSubByte(DType dtype, int64_t value);

enum class E8M0Rounding : uint8_t { kUp, kDown, kNearest };
// From the attribute round_mode; empty when it is none of up, down, nearest.
std::optional<E8M0Rounding> ParseE8M0Rounding(const std::string& name);

// Turns floats into a small floating type. What lies beyond the range becomes the largest value
// where `saturate`, otherwise NaN or infinity (ONNX's Cast has the tables); float4e2m1 always
// saturates.
struct SmallFloatEncoder {
  DType dtype;
  bool saturate = true;
  E8M0Rounding rounding = E8M0Rounding::kUp;
  uint8_t operator()(float value) const;
};

// The float nearest to `value` from which a further rounding to a small float gives what rounding
// `value` at once would: "round to odd".
float RoundToOdd(double value);

}  // namespace caesura

#endif  // CAESURA_CORE_KERNELS_SIMD_SMALL_TYPES_H_
