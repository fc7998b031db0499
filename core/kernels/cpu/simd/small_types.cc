// SPDX-License-Identifier: Apache-2.0
#include "core/kernels/cpu/simd/small_types.h"

#include <cassert>
#include <cmath>
#include <cstring>
#include <limits>

namespace caesura {
namespace {

const SmallFloatFormat* FormatOf(DType dtype) {
  switch (dtype) {
    case DType::kFloat8E4M3FN: return &kE4M3FN;
    case DType::kFloat8E4M3FNUZ: return &kE4M3FNUZ;
    case DType::kFloat8E5M2: return &kE5M2;
    case DType::kFloat8E5M2FNUZ: return &kE5M2FNUZ;
    case DType::kFloat4E2M1: return &kE2M1;
    default: return nullptr;
  }
}

float DecodeByte(DType dtype, uint8_t byte) {
  if (const SmallFloatFormat* format = FormatOf(dtype)) return SmallFloatToFloat(byte, *format);
  if (dtype == DType::kFloat8E8M0)
    return byte == 0xff ? std::nanf("") : std::ldexp(1.0f, byte - 127);
  if (dtype == DType::kInt8) return static_cast<int8_t>(byte);
  if (kSubByteIntegers.Contains(dtype)) {
    const uint8_t wrapped = WrapSubByte(dtype, byte);
    const bool is_signed = dtype == DType::kInt4 || dtype == DType::kInt2;
    return is_signed ? static_cast<int8_t>(wrapped) : wrapped;
  }
  return byte;
}

// OCP MX's scale type: powers of two from 2^-127 to 2^127. The sign is ignored, as the ONNX
// reference does.
uint8_t EncodeE8M0(float value, bool saturate, E8M0Rounding rounding) {
  uint32_t bits;
  std::memcpy(&bits, &value, sizeof(bits));
  const uint32_t exponent = (bits >> 23) & 0xffu;
  const uint32_t mantissa = bits & 0x7fffffu;
  // The specification's table gives E8M0_MAX for infinity where it saturates.
  if (exponent == 0xff) return mantissa == 0 && saturate ? 0xfe : 0xff;
  bool up = false;
  if (rounding == E8M0Rounding::kUp) up = mantissa != 0;
  if (rounding == E8M0Rounding::kNearest) {
    // A tie goes up, but among subnormals (exponent 0) it stays down.
    up = exponent > 0 ? mantissa >= 0x400000u : mantissa > 0x400000u;
  }
  if (up && exponent == 0xfe) return saturate ? 0xfe : 0xff;
  return static_cast<uint8_t>(exponent + (up ? 1 : 0));
}

}  // namespace

std::array<float, 256> DecodeTable(DType dtype) {
  assert(DTypeSize(dtype) == 1);
  std::array<float, 256> table;
  for (int i = 0; i < 256; ++i) table[i] = DecodeByte(dtype, static_cast<uint8_t>(i));
  return table;
}

IntegerRange RangeOf(DType dtype) {
  const bool is_signed =
      kSignedTypes.Contains(dtype) || dtype == DType::kInt4 || dtype == DType::kInt2;
  const int bits = DTypeFileBits(dtype);
  if (is_signed) return {-std::ldexp(1.0, bits - 1), std::ldexp(1.0, bits - 1) - 1};
  return {0.0, std::ldexp(1.0, bits) - 1};
}

uint8_t WrapSubByte(DType dtype, int64_t value) {
  const int spare = 8 - DTypeFileBits(dtype);
  const uint8_t shifted = static_cast<uint8_t>(static_cast<uint64_t>(value) << spare);
  const bool is_signed = dtype == DType::kInt4 || dtype == DType::kInt2;
  return is_signed ? static_cast<uint8_t>(static_cast<int8_t>(shifted) >> spare)
                   : static_cast<uint8_t>(shifted >> spare);
}

std::optional<E8M0Rounding> ParseE8M0Rounding(const std::string& name) {
  if (name == "up") return E8M0Rounding::kUp;
  if (name == "down") return E8M0Rounding::kDown;
  if (name == "nearest") return E8M0Rounding::kNearest;
  return std::nullopt;
}

uint8_t SmallFloatEncoder::operator()(float value) const {
  if (dtype == DType::kFloat8E8M0) return EncodeE8M0(value, saturate, rounding);
  if (dtype == DType::kFloat4E2M1 && std::isnan(value))
    return 0x08;  // it has no NaN: -0, as the ONNX reference gives
  return FloatToSmallFloat(value, *FormatOf(dtype), saturate);
}

float RoundToOdd(double value) {
  const float rounded = static_cast<float>(value);
  if (static_cast<double>(rounded) == value || !std::isfinite(rounded)) return rounded;
  uint32_t bits;
  std::memcpy(&bits, &rounded, sizeof(bits));
  if (bits & 1u) return rounded;
  // An even neighbour was taken: take the odd one on the other side of `value`.
  const bool away = std::fabs(static_cast<double>(rounded)) < std::fabs(value);
  bits += away ? 1u : -1u;
  float odd;
  std::memcpy(&odd, &bits, sizeof(odd));
  return odd;
}

}  // namespace caesura
