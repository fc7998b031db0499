// SPDX-License-Identifier: Apache-2.0
#include <ATen/Functions.h>
#include <ATen/TensorOperators.h>

#include "torch_bridge/provider/torch_ops.h"
#include "torch_bridge/torch_tensor.h"

namespace caesura::torch {
namespace {

using Unary = at::Tensor (*)(const at::Tensor&);
using Binary = at::Tensor (*)(const at::Tensor&, const at::Tensor&);

TorchOp One(const char* op_type, Unary f, DTypeSet types = kFloatTypes) {
  return {op_type,
          [f](const KernelInfo&) -> TorchRun {
            return [f](const Tensors& x) { return Tensors{f(x[0])}; };
          },
          types};
}
// Broadcasting follows NumPy's rules on both sides.
TorchOp Two(const char* op_type, Binary f, DTypeSet types = kTorchNumbers) {
  return {op_type,
          [f](const KernelInfo&) -> TorchRun {
            return [f](const Tensors& x) { return Tensors{f(x[0], x[1])}; };
          },
          types, 7};
}
// Any number of inputs, folded from the left.
TorchOp Many(const char* op_type, Binary f, DTypeSet types) {
  return {op_type,
          [f](const KernelInfo&) -> TorchRun {
            return [f](const Tensors& x) {
              at::Tensor y = x[0];
              for (size_t i = 1; i < x.size(); ++i) y = f(y, x[i]);
              return Tensors{x.size() == 1 ? y.clone() : y};
            };
          },
          types, 8};
}
// One input and float attributes, whose defaults are ONNX's.
template <typename F>
TorchOp WithFloats(const char* op_type, std::vector<std::pair<const char*, float>> names, F f) {
  return {op_type, [names, f](const KernelInfo& info) -> TorchRun {
            std::vector<double> values;
            for (const auto& [name, fallback] : names)
              values.push_back(info.Attr<float>(name, fallback));
            return [values, f](const Tensors& x) { return Tensors{f(x[0], values)}; };
          }};
}
using Values = const std::vector<double>&;
using X = const at::Tensor&;

TorchRun Gelu(const KernelInfo& info) {
  const auto approximate = info.Attr<std::string>("approximate", "none");
  return [approximate](const Tensors& x) { return Tensors{at::gelu(x[0], approximate)}; };
}

TorchRun Mod(const KernelInfo& info) {
  const bool c_sign = info.Attr<int64_t>("fmod", 0) != 0;
  return [c_sign](const Tensors& x) {
    return Tensors{c_sign ? at::fmod(x[0], x[1]) : at::remainder(x[0], x[1])};
  };
}

TorchRun Clip(const KernelInfo& info) {
  if (!info.HasInput(1) && !info.HasInput(2)) return nullptr;
  return [](const Tensors& x) {
    const auto bound = [&](size_t i) {
      return i < x.size() && x[i].defined() ? std::optional<at::Tensor>(x[i]) : std::nullopt;
    };
    return Tensors{at::clamp(x[0], bound(1), bound(2))};
  };
}

TorchRun Cast(const KernelInfo& info) {
  const auto type = ScalarTypeOf(static_cast<DType>(info.Attr<int64_t>("to", 0)));
  if (!type || !kTorchTypes.Contains(static_cast<DType>(info.Attr<int64_t>("to", 0))))
    return nullptr;
  return [type = *type](const Tensors& x) {
    return Tensors{x[0].to(type, /*non_blocking=*/false, /*copy=*/true)};
  };
}

}  // namespace

std::vector<TorchOp> ElementwiseTorchOps() {
  const DTypeSet booleans = {DType::kBool};
  const DTypeSet integers = kSignedTypes | DTypeSet{DType::kUInt8};
  std::vector<TorchOp> ops = {
      One("Abs", at::abs, kTorchNumbers),
      One("Acos", at::acos),
      One("Acosh", at::acosh),
      One("Asin", at::asin),
      One("Asinh", at::asinh),
      One("Atan", at::atan),
      One("Atanh", at::atanh),
      One("BitwiseNot", at::bitwise_not, integers),
      One("Ceil", at::ceil),
      One("Cos", at::cos),
      One("Cosh", at::cosh),
      One("Erf", at::erf),
      One("Exp", at::exp),
      One("Floor", at::floor),
      One("HardSwish", at::hardswish),
      One("IsNaN", at::isnan),
      One("Log", at::log),
      One("Mish", at::mish),
      One("Neg", at::neg, kFloatTypes | kSignedTypes),
      One("Not", at::logical_not, booleans),
      One("Reciprocal", at::reciprocal),
      One("Relu", at::relu, kFloatTypes | kSignedTypes),
      One("Round", at::round),
      One("Sigmoid", at::sigmoid),
      One(
          "Sign", [](X x) { return at::where(at::isnan(x), x, at::sign(x)); }, kTorchNumbers),
      One("Sin", at::sin),
      One("Sinh", at::sinh),
      One("Sqrt", at::sqrt),
      One("Tan", at::tan),
      One("Tanh", at::tanh),
      One("Softsign", [](X x) { return at::div(x, at::add(at::abs(x), 1)); }),
      // without the threshold beyond which PyTorch takes x itself
      One("Softplus", [](X x) { return at::logaddexp(x, at::zeros_like(x)); },
          {DType::kFloat32, DType::kFloat64}),
      Two("Add", [](X a, X b) { return at::add(a, b); }),
      Two("Sub", [](X a, X b) { return at::sub(a, b); }),
      Two("Mul", [](X a, X b) { return at::mul(a, b); }),
      Two("Div",
          [](X a, X b) {
            return at::isFloatingType(a.scalar_type()) ? at::div(a, b) : at::div(a, b, "trunc");
          }),
      Two(
          "Pow", [](X a, X b) { return at::pow(a, b).to(a.scalar_type()); }, kFloatTypes),
      Two("And", at::logical_and, booleans),
      Two("Or", at::logical_or, booleans),
      Two("Xor", at::logical_xor, booleans),
      Two("BitwiseAnd", at::bitwise_and, integers),
      Two("BitwiseOr", at::bitwise_or, integers),
      Two("BitwiseXor", at::bitwise_xor, integers),
      Two("Equal", at::eq, kTorchTypes),
      Two("Greater", at::gt),
      Two("GreaterOrEqual", at::ge),
      Two("Less", at::lt),
      Two("LessOrEqual", at::le),
      Two(
          "PRelu", [](X x, X slope) { return at::where(x < 0, x * slope, x); }, kFloatTypes),
      Many("Max", at::maximum, kTorchNumbers),
      Many("Min", at::minimum, kTorchNumbers),
      Many(
          "Sum", [](X a, X b) { return at::add(a, b); }, kFloatTypes),
      WithFloats("Celu", {{"alpha", 1.f}}, [](X x, Values v) { return at::celu(x, v[0]); }),
      WithFloats("Elu", {{"alpha", 1.f}}, [](X x, Values v) { return at::elu(x, v[0]); }),
      WithFloats("HardSigmoid", {{"alpha", 0.2f}, {"beta", 0.5f}},
                 [](X x, Values v) { return at::clamp(x * v[0] + v[1], 0, 1); }),
      WithFloats("LeakyRelu", {{"alpha", 0.01f}},
                 [](X x, Values v) { return at::leaky_relu(x, v[0]); }),
      WithFloats("Selu",
                 {{"alpha", 1.67326319217681884765625f}, {"gamma", 1.05070102214813232421875f}},
                 [](X x, Values v) { return at::elu(x, v[0], v[1]); }),
      WithFloats("ThresholdedRelu", {{"alpha", 1.f}},
                 [](X x, Values v) { return at::where(x > v[0], x, 0); }),  // 0 of NaN
      {"Gelu", Gelu},
      {"Clip", Clip, kTorchNumbers, 11},
      {"Cast", Cast, kTorchTypes, 9},
      {"Mod", Mod, kTorchNumbers},
  };
  ops.push_back({.op_type = "Where",
                 .make = [](const KernelInfo&) -> TorchRun {
                   return [](const Tensors& x) { return Tensors{at::where(x[0], x[1], x[2])}; };
                 },
                 .types = kTorchTypes,
                 .typed_input = 1});
  return ops;
}

}  // namespace caesura::torch
