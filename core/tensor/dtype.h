// SPDX-License-Identifier: Apache-2.0
// Element types. The numbers are those of ONNX's TensorProto.DataType, so that files map one to
// one. Types below a byte (int4, uint4, int2, uint2, float4) take one byte per element in memory
// and are packed only in files.
//
// Float16 and BFloat16 are storage types that compute through float (round to nearest even). The
// conversions of 8- and 4-bit floats follow ONNX's specification ("float stored in 8 bits", OCP FP8
// and MX).
#ifndef CAESURA_CORE_TENSOR_DTYPE_H_
#define CAESURA_CORE_TENSOR_DTYPE_H_

#include <complex>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <initializer_list>
#include <limits>
#include <string>
#include <string_view>

namespace caesura {

// Conversions between float32 and the bits of float16 and bfloat16. To the shorter type they round
// to nearest even; a NaN stays a NaN.
float Float16BitsToFloat(uint16_t bits);
uint16_t FloatToFloat16Bits(float value);

// Conversions of bfloat16 round as those of float16.
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

// The type of a tensor's elements.
enum class DType : uint8_t {
  kUndefined = 0,
  kFloat32 = 1,
  kUInt8 = 2,
  kInt8 = 3,
  kUInt16 = 4,
  kInt16 = 5,
  kInt32 = 6,
  kInt64 = 7,
  kString = 8,
  kBool = 9,
  kFloat16 = 10,
  kFloat64 = 11,
  kUInt32 = 12,
  kUInt64 = 13,
  kComplex64 = 14,
  kComplex128 = 15,
  kBFloat16 = 16,
  kFloat8E4M3FN = 17,
  kFloat8E4M3FNUZ = 18,
  kFloat8E5M2 = 19,
  kFloat8E5M2FNUZ = 20,
  kUInt4 = 21,
  kInt4 = 22,
  kFloat4E2M1 = 23,
  kFloat8E8M0 = 24,
  kUInt2 = 25,
  kInt2 = 26,
};
inline constexpr int kDTypeCount = 27;

// Bytes of one element in memory; sizeof(std::string) for strings; 0 for kUndefined.
size_t DTypeSize(DType dtype);
// Bits of one element in a file: 4 for int4 and so on, otherwise 8 * DTypeSize.
int DTypeFileBits(DType dtype);
// "float32", "bfloat16", ...
const char* DTypeName(DType dtype);
// The dtype of this name; kUndefined where there is none.
DType DTypeFromName(std::string_view name);
// float16, bfloat16, float32, float64: what can carry a gradient.
bool IsDifferentiable(DType dtype);
// The four above and the 8- and 4-bit floats.
bool IsFloating(DType dtype);
bool IsInteger(DType dtype);  // signed or unsigned, any width; not bool

// A set of dtypes, as kernel definitions state them.
class DTypeSet {
 public:
  constexpr DTypeSet() = default;
  constexpr DTypeSet(std::initializer_list<DType> dtypes) {
    for (DType d : dtypes) bits_ |= 1u << static_cast<int>(d);
  }
  constexpr bool Contains(DType dtype) const { return (bits_ >> static_cast<int>(dtype)) & 1u; }
  constexpr DTypeSet operator|(DTypeSet other) const {
    DTypeSet out;
    out.bits_ = bits_ | other.bits_;
    return out;
  }
  // "float32, float64"
  std::string ToString() const;

 private:
  uint32_t bits_ = 0;
};

inline constexpr DTypeSet kFloatTypes = {DType::kFloat32, DType::kFloat64, DType::kFloat16,
                                         DType::kBFloat16};
inline constexpr DTypeSet kSignedTypes = {DType::kInt8, DType::kInt16, DType::kInt32,
                                          DType::kInt64};
inline constexpr DTypeSet kUnsignedTypes = {DType::kUInt8, DType::kUInt16, DType::kUInt32,
                                            DType::kUInt64};
inline constexpr DTypeSet kIntegerTypes = kSignedTypes | kUnsignedTypes;
inline constexpr DTypeSet kNumericTypes = kFloatTypes | kIntegerTypes;
inline constexpr DTypeSet kFixedTypes =  // every type but strings
    kNumericTypes | DTypeSet{DType::kBool,
                             DType::kComplex64,
                             DType::kComplex128,
                             DType::kFloat8E4M3FN,
                             DType::kFloat8E4M3FNUZ,
                             DType::kFloat8E5M2,
                             DType::kFloat8E5M2FNUZ,
                             DType::kUInt4,
                             DType::kInt4,
                             DType::kFloat4E2M1,
                             DType::kFloat8E8M0,
                             DType::kUInt2,
                             DType::kInt2};
inline constexpr DTypeSet kAllTypes = kFixedTypes | DTypeSet{DType::kString};

// The DType of a C++ element type.
template <typename T>
struct DTypeOf;
template <>
struct DTypeOf<float> {
  static constexpr DType value = DType::kFloat32;
};
template <>
struct DTypeOf<double> {
  static constexpr DType value = DType::kFloat64;
};
template <>
struct DTypeOf<Float16> {
  static constexpr DType value = DType::kFloat16;
};
template <>
struct DTypeOf<BFloat16> {
  static constexpr DType value = DType::kBFloat16;
};
template <>
struct DTypeOf<int8_t> {
  static constexpr DType value = DType::kInt8;
};
template <>
struct DTypeOf<int16_t> {
  static constexpr DType value = DType::kInt16;
};
template <>
struct DTypeOf<int32_t> {
  static constexpr DType value = DType::kInt32;
};
template <>
struct DTypeOf<int64_t> {
  static constexpr DType value = DType::kInt64;
};
template <>
struct DTypeOf<uint8_t> {
  static constexpr DType value = DType::kUInt8;
};
template <>
struct DTypeOf<uint16_t> {
  static constexpr DType value = DType::kUInt16;
};
template <>
struct DTypeOf<uint32_t> {
  static constexpr DType value = DType::kUInt32;
};
template <>
struct DTypeOf<uint64_t> {
  static constexpr DType value = DType::kUInt64;
};
template <>
struct DTypeOf<bool> {
  static constexpr DType value = DType::kBool;
};
template <>
struct DTypeOf<std::string> {
  static constexpr DType value = DType::kString;
};
template <>
struct DTypeOf<std::complex<float>> {
  static constexpr DType value = DType::kComplex64;
};
template <>
struct DTypeOf<std::complex<double>> {
  static constexpr DType value = DType::kComplex128;
};

template <typename T>
inline constexpr DType kDTypeOf = DTypeOf<T>::value;

// Carries a type into a generic lambda: `[&](auto tag) { using T = typename decltype(tag)::type;
// ... }`.
template <typename T>
struct TypeTag {
  using type = T;
};

// Calls fn(TypeTag<T>{}) for the T among Ts whose DType is `dtype`; returns false when there is
// none.
template <typename... Ts, typename Fn>
bool DispatchDType(DType dtype, Fn&& fn) {
  return ((dtype == kDTypeOf<Ts> ? (fn(TypeTag<Ts>{}), true) : false) || ...);
}

// DispatchDType over the usual groups.
template <typename Fn>
bool DispatchFloat(DType dtype, Fn&& fn) {
  return DispatchDType<float, double, Float16, BFloat16>(dtype, fn);
}
// DispatchDType over the integers, and over the floats and integers.
template <typename Fn>
bool DispatchInteger(DType dtype, Fn&& fn) {
  return DispatchDType<int32_t, int64_t, int8_t, int16_t, uint8_t, uint16_t, uint32_t, uint64_t>(
      dtype, fn);
}
template <typename Fn>
bool DispatchNumeric(DType dtype, Fn&& fn) {
  return DispatchFloat(dtype, fn) || DispatchInteger(dtype, fn);
}
// By element size alone, for kernels that move bytes: T is uint8_t, uint16_t, uint32_t, uint64_t or
// std::complex<double> (16 bytes), and std::string for strings.
template <typename Fn>
void DispatchStorage(DType dtype, Fn&& fn) {
  if (dtype == DType::kString) {
    fn(TypeTag<std::string>{});
    return;
  }
  switch (DTypeSize(dtype)) {
    case 1: fn(TypeTag<uint8_t>{}); break;
    case 2: fn(TypeTag<uint16_t>{}); break;
    case 4: fn(TypeTag<uint32_t>{}); break;
    case 8: fn(TypeTag<uint64_t>{}); break;
    case 16: fn(TypeTag<std::complex<double>>{}); break;
    default: break;
  }
}

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

#endif  // CAESURA_CORE_TENSOR_DTYPE_H_
