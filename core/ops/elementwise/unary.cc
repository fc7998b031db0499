// SPDX-License-Identifier: Apache-2.0
// Unary mathematics, rounding and tests, as ONNX's operators of the same name. Activations are in
// activation.cc, Identity and Clip in files of their own.
#include <math.h>  // with the functions' overloads in the global namespace

#include <cmath>

#include "core/ops/elementwise/unary_kernel.h"
#include "core/kernels/kernel_registry.h"
#include "core/kernels/simd/convert.h"
#include "core/kernels/simd/float_math.h"
#include "core/kernels/simd/small_types.h"

namespace caesura {
namespace {

// Negation that wraps around, so that the lowest integer stays itself.
template <typename T>
T Negated(T x) {
  if constexpr (std::is_integral_v<T>) {
    return static_cast<T>(0u - static_cast<std::make_unsigned_t<T>>(x));
  } else {
    return -x;
  }
}

template <typename T>
T Magnitude(T x) {
  if constexpr (std::is_unsigned_v<T>) return x;
  if constexpr (std::is_floating_point_v<T>) return std::fabs(x);
  return x < 0 ? Negated(x) : x;
}

// -1, 0, 1; of NaN, of which ONNX's text says nothing, NaN as onnxruntime and ONNX's reference have
// it.
template <typename T>
T SignOf(T x) {
  if constexpr (std::is_unsigned_v<T>) return x > 0;
  return x != x ? x : static_cast<T>((x > 0) - (x < 0));
}

// lambd and bias are floats for integers, too: those compute in double.
struct ShrinkOp {
  float lambd, bias;
  explicit ShrinkOp(const KernelInfo& info)
      : lambd(info.Attr<float>("lambd", 0.5f)), bias(info.Attr<float>("bias", 0.0f)) {}
  template <typename T>
  T operator()(T x) const {
    using Real = std::conditional_t<std::is_floating_point_v<T>, T, double>;
    const Real v = static_cast<Real>(x);
    const Real shrunk = v < -lambd ? v + bias : v > lambd ? v - bias : Real{0};
    if constexpr (std::is_floating_point_v<T>) return shrunk;
    return ConvertElement<T>(shrunk);
  }
};

struct IsNanOp {
  explicit IsNanOp(const KernelInfo&) {}
  template <typename T>
  bool operator()(T x) const {
    return std::isnan(x);
  }
};

struct IsInfOp {
  bool positive, negative;
  explicit IsInfOp(const KernelInfo& info)
      : positive(info.Attr<int64_t>("detect_positive", 1) != 0),
        negative(info.Attr<int64_t>("detect_negative", 1) != 0) {}
  template <typename T>
  bool operator()(T x) const {
    return (positive && x == std::numeric_limits<T>::infinity()) ||
           (negative && x == -std::numeric_limits<T>::infinity());
  }
};

// A test of floats; 8-bit floats are looked up.
template <typename Op>
Status CreateFloatTest(KernelInfo& info) {
  const DType dtype = info.InputDType(0);
  auto set = [&](auto tag) { SetUnaryCompute<Op, typename decltype(tag)::type, bool>(info); };
  if (DispatchFloat(dtype, set)) return {};
  if (!kFloat8Types.Contains(dtype)) return RefuseDType(info);
  const Op op(info);
  std::array<bool, 256> answers;
  const std::array<float, 256> values = DecodeTable(dtype);
  for (int i = 0; i < 256; ++i) answers[i] = op(values[i]);
  const int64_t count = info.InputShape(0).elements();
  info.SetOutput(0, DType::kBool, info.InputShape(0));
  info.SetCompute([count, answers](KernelContext& context) {
    const uint8_t* x = context.Input<uint8_t>(0);
    bool* y = context.Output<bool>(0);
    for (int64_t i = 0; i < count; ++i) y[i] = answers[x[i]];
  });
  return {};
}

Status CreateNot(KernelInfo& info) {
  SetUnaryCompute<MapOp<[](bool x) { return !x; }>, bool>(info);
  return {};
}

constexpr UnaryRow kUnaryRows[] = {
#define FUNCTION(op, domain, result) \
  {#op, kFloatTypes, CreateFloatMap<[](auto x) { return result; }>, domain},
#include "core/kernels/element_functions.inc"
#undef FUNCTION
    {"Abs", kNumericTypes, CreateNumericMap<[](auto x) { return Magnitude(x); }>},
    {"Neg", kFloatTypes | kSignedTypes, CreateNumericMap<[](auto x) { return Negated(x); }>},
    {"Sign", kNumericTypes, CreateNumericMap<[](auto x) { return SignOf(x); }>},
    {"Exp", kFloatTypes, CreateFloatMap<[](auto x) { return math::Exp(x); }>},
    {"Log", kFloatTypes, CreateFloatMap<[](auto x) { return math::Log(x); }>},
    {"Erf", kFloatTypes, CreateFloatMap<[](auto x) { return math::Erf(x); }>},
    {"Shrink", kNumericTypes, CreateNumericOp<ShrinkOp>},
    {"Not", {DType::kBool}, CreateNot},
    {"BitwiseNot", kIntegerTypes, CreateIntegerMap<[](auto x) { return ~x; }>},
};

}  // namespace

void RegisterUnary(KernelRegistry& registry) {
  RegisterUnaryRows(registry, kUnaryRows);
  registry.Add({.op_type = "IsNaN",
                .types = kFloatTypes | kFloat8Types,
                .create = CreateFloatTest<IsNanOp>});
  registry.Add({.op_type = "IsInf",
                .types = kFloatTypes | kFloat8Types,
                .create = CreateFloatTest<IsInfOp>});
}

}  // namespace caesura
