// SPDX-License-Identifier: Apache-2.0
#include "core/kernels/simd/small_types.h"

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

// OCP MX's scale type: powers of two from 2^-127 to 2^127, as Cast-24's table has it: smaller
// values (0 too) and larger ones (infinity too) become the nearest of them, or NaN without
// saturation. The sign is ignored, as the ONNX reference does.
uint8_t EncodeE8M0(float value, bool saturate, E8M0Rounding rounding) {
  constexpr uint32_t kLeast = 0x400000, kMost = 0x7f000000, kInfinity = 0x7f800000;  // of floats
  uint32_t bits;
  std::memcpy(&bits, &value, sizeof(bits));
  bits &= 0x7fffffff;
  if (bits > kInfinity) return 0xff;
  if (bits < kLeast) return saturate ? 0 : 0xff;
  if (bits > kMost) return saturate ? 0xfe : 0xff;
  // value = 2^(exponent - 127) (1 + fraction / 2^23); subnormals lack the leading 1.
  const uint32_t exponent = bits >> 23;
  const uint32_t fraction = (exponent > 0 ? bits : bits << 1) & 0x7fffff;
  const bool up = rounding == E8M0Rounding::kUp
                      ? fraction > 0
                      : rounding == E8M0Rounding::kNearest && fraction >= 0x400000;
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
