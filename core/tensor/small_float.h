// SPDX-License-Identifier: Apache-2.0
// Float16 and BFloat16 as storage types that compute through float (round to nearest even), and
// conversions of the 8- and 4-bit floats of ONNX (the ONNX specification's "float stored in 8
// bits", OCP FP8 and MX).
#ifndef CAESURA_CORE_TENSOR_SMALL_FLOAT_H_
#define CAESURA_CORE_TENSOR_SMALL_FLOAT_H_

#include <cstdint>
#include <cstring>
#include <limits>

namespace caesura {

// Conversions between float32 and the bits of float16 and bfloat16. To the shorter type they round
// to nearest even; a NaN stays a NaN.
float Float16BitsToFloat(uint16_t bits);
uint16_t FloatToFloat16Bits(float value);

// The same for bfloat16.
inline float BFloat16BitsToFloat(uint16_t bits) {
  const uint32_t wide = static_cast<uint32_t>(bits) << 16;
  float out;
  std::memcpy(&out, &wide, sizeof(out));
  return out;
}
inline uint16_t FloatToBFloat16Bits(float value) {
  uint32_t bits;
  std::memcpy(&bits, &value, sizeof(bits));
  if ((bits & 0x7fffffffu) > 0x7f800000u)
    return static_cast<uint16_t>((bits >> 16) | 0x40u);  // NaN stays NaN
  return static_cast<uint16_t>((bits + 0x7fffu + ((bits >> 16) & 1u)) >> 16);
}

// IEEE 754 binary16. Arithmetic goes through float.
struct Float16 {
  uint16_t bits;
  Float16() = default;
  Float16(float value) : bits(FloatToFloat16Bits(value)) {}
  operator float() const { return Float16BitsToFloat(bits); }
  Float16& operator+=(float v) { return *this = Float16(float(*this) + v); }
  static Float16 FromBits(uint16_t b) {
    Float16 out;
    out.bits = b;
    return out;
  }
};

// bfloat16: the upper half of a float32. Arithmetic goes through float.
struct BFloat16 {
  uint16_t bits;
  BFloat16() = default;
  BFloat16(float value) : bits(FloatToBFloat16Bits(value)) {}
  operator float() const { return BFloat16BitsToFloat(bits); }
  BFloat16& operator+=(float v) { return *this = BFloat16(float(*this) + v); }
  static BFloat16 FromBits(uint16_t b) {
    BFloat16 out;
    out.bits = b;
    return out;
  }
};

// The type in which a kernel accumulates values of type T.
template <typename T>
struct AccumulatorOf {
  using type = T;
};
template <>
struct AccumulatorOf<Float16> {
  using type = float;
};
template <>
struct AccumulatorOf<BFloat16> {
  using type = float;
};
// Shorthand for the type above.
template <typename T>
using Accumulator = typename AccumulatorOf<T>::type;

// An 8- or 4-bit float format: its bit layout and what it does at the edges.
struct SmallFloatFormat {
  int exponent_bits;
  int mantissa_bits;
  int bias;
  bool has_infinity;
  bool is_fnuz;  // no negative zero: the bit pattern of -0 is NaN
  bool has_nan;  // false for float4e2m1
};
inline constexpr SmallFloatFormat kE4M3FN{4, 3, 7, false, false, true};
inline constexpr SmallFloatFormat kE4M3FNUZ{4, 3, 8, false, true, true};
inline constexpr SmallFloatFormat kE5M2{5, 2, 15, true, false, true};
inline constexpr SmallFloatFormat kE5M2FNUZ{5, 2, 16, false, true, true};
inline constexpr SmallFloatFormat kE2M1{2, 1, 1, false, false, false};

// The value of an 8- or 4-bit float, which is exact in float32.
float SmallFloatToFloat(uint8_t bits, const SmallFloatFormat& format);
// `saturate`: values beyond the largest finite one become it; otherwise NaN, or infinity where
// there is one.
uint8_t FloatToSmallFloat(float value, const SmallFloatFormat& format, bool saturate);

}  // namespace caesura

namespace std {
template <>
struct numeric_limits<caesura::Float16> : numeric_limits<float> {
  static caesura::Float16 lowest() { return caesura::Float16::FromBits(0xfbff); }
  static caesura::Float16 max() { return caesura::Float16::FromBits(0x7bff); }
  static caesura::Float16 infinity() { return caesura::Float16::FromBits(0x7c00); }
};
template <>
struct numeric_limits<caesura::BFloat16> : numeric_limits<float> {
  static caesura::BFloat16 lowest() { return caesura::BFloat16::FromBits(0xff7f); }
  static caesura::BFloat16 max() { return caesura::BFloat16::FromBits(0x7f7f); }
  static caesura::BFloat16 infinity() { return caesura::BFloat16::FromBits(0x7f80); }
};
}  // namespace std

#endif  // CAESURA_CORE_TENSOR_SMALL_FLOAT_H_
