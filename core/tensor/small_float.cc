// SPDX-License-Identifier: Apache-2.0
#include "core/tensor/dtype.h"

#include <cmath>

namespace caesura {
namespace {

uint32_t Bits(float value) {
  uint32_t bits;
  std::memcpy(&bits, &value, sizeof(bits));
  return bits;
}
float FromBits(uint32_t bits) {
  float value;
  std::memcpy(&value, &bits, sizeof(value));
  return value;
}

// The pattern that stands for NaN, without sign.
uint8_t NanBits(const SmallFloatFormat& f) {
  if (f.is_fnuz) return 0x80;
  return static_cast<uint8_t>((1 << (f.exponent_bits + f.mantissa_bits)) - 1);
}

// The pattern of the largest finite value.
uint8_t MaxBits(const SmallFloatFormat& f) {
  const int all_ones = (1 << (f.exponent_bits + f.mantissa_bits)) - 1;
  if (f.has_infinity) return static_cast<uint8_t>(all_ones - (1 << f.mantissa_bits));
  return static_cast<uint8_t>(f.has_nan && !f.is_fnuz ? all_ones - 1 : all_ones);
}

}  // namespace

float Float16BitsToFloat(uint16_t bits) {
  const uint32_t sign = static_cast<uint32_t>(bits & 0x8000u) << 16;
  const uint32_t magnitude = bits & 0x7fffu;
  if (magnitude >= 0x7c00u) return FromBits(sign | 0x7f800000u | ((magnitude & 0x3ffu) << 13));
  if (magnitude >= 0x0400u) return FromBits(sign | ((magnitude << 13) + (112u << 23)));
  // Subnormal: the value is magnitude * 2^-24, exact in float.
  return FromBits(sign | Bits(static_cast<float>(magnitude) * 5.9604644775390625e-8f));
}

uint16_t FloatToFloat16Bits(float value) {
  const uint32_t bits = Bits(value);
  const uint16_t sign = static_cast<uint16_t>((bits >> 16) & 0x8000u);
  const uint32_t magnitude = bits & 0x7fffffffu;
  if (magnitude > 0x7f800000u)
    return static_cast<uint16_t>(sign | 0x7e00u | ((magnitude >> 13) & 0x3ffu));
  if (magnitude >= 0x47800000u) return static_cast<uint16_t>(sign | 0x7c00u);  // >= 65536
  if (magnitude < 0x38800000u) {  // below the smallest normal half: add 0.5 so that the unit of the
                                  // sum is 2^-24
    const float shifted = FromBits(magnitude) + 0.5f;
    return static_cast<uint16_t>(sign | (Bits(shifted) - 0x3f000000u));
  }
  const uint32_t odd = (magnitude >> 13) & 1u;
  return static_cast<uint16_t>(sign | ((magnitude - (112u << 23) + 0xfffu + odd) >> 13));
}

float SmallFloatToFloat(uint8_t bits, const SmallFloatFormat& f) {
  const int width = f.exponent_bits + f.mantissa_bits;
  const int magnitude = bits & ((1 << width) - 1);
  const bool negative = (bits >> width) & 1;
  const float sign = negative ? -1.0f : 1.0f;
  if (f.is_fnuz && negative && magnitude == 0) return std::nanf("");
  if (f.has_infinity) {
    const int infinity = ((1 << f.exponent_bits) - 1) << f.mantissa_bits;
    if (magnitude == infinity) return sign * INFINITY;
    if (magnitude > infinity) return std::nanf("");
  } else if (f.has_nan && !f.is_fnuz && magnitude == (1 << width) - 1) {
    return std::nanf("");
  }
  const int exponent = magnitude >> f.mantissa_bits;
  const int mantissa = magnitude & ((1 << f.mantissa_bits) - 1);
  if (exponent == 0)
    return sign * std::ldexp(static_cast<float>(mantissa), 1 - f.bias - f.mantissa_bits);
  return sign * std::ldexp(static_cast<float>(mantissa + (1 << f.mantissa_bits)),
                           exponent - f.bias - f.mantissa_bits);
}

uint8_t FloatToSmallFloat(float value, const SmallFloatFormat& f, bool saturate) {
  const int width = f.exponent_bits + f.mantissa_bits;
  const uint8_t sign = static_cast<uint8_t>((std::signbit(value) ? 1 : 0) << width);
  const uint8_t max_bits = MaxBits(f);
  if (std::isnan(value)) return f.has_nan ? (f.is_fnuz ? NanBits(f) : sign | NanBits(f)) : max_bits;
  const float max_value = SmallFloatToFloat(max_bits, f);
  const float magnitude = std::fabs(value);
  int exponent;
  std::frexp(magnitude, &exponent);
  // The unit in the last place at this exponent, clamped to the subnormal unit.
  const int unit = std::max(exponent - 1, 1 - f.bias) - f.mantissa_bits;
  const float rounded = std::isinf(magnitude)
                            ? magnitude
                            : std::ldexp(std::nearbyint(std::ldexp(magnitude, -unit)), unit);
  if (rounded > max_value) {
    if (saturate || !f.has_nan) return sign | max_bits;
    if (f.is_fnuz) return NanBits(f);
    return f.has_infinity
               ? static_cast<uint8_t>(sign | (((1 << f.exponent_bits) - 1) << f.mantissa_bits))
               : static_cast<uint8_t>(sign | NanBits(f));
  }
  if (rounded == 0.0f) return f.is_fnuz ? 0 : sign;
  int e;
  const float fraction = std::frexp(rounded, &e);  // in [0.5, 1)
  const int biased = e - 1 + f.bias;
  if (biased <= 0) {
    const int mantissa = static_cast<int>(std::ldexp(rounded, f.bias - 1 + f.mantissa_bits));
    return static_cast<uint8_t>(sign | mantissa);
  }
  const int mantissa =
      static_cast<int>(std::ldexp(fraction, f.mantissa_bits + 1)) - (1 << f.mantissa_bits);
  return static_cast<uint8_t>(sign | (biased << f.mantissa_bits) | mantissa);
}

}  // namespace caesura
