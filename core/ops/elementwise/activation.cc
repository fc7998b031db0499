// SPDX-License-Identifier: Apache-2.0
// Activation functions, as ONNX's operators of the same name. A NaN goes through all of them.
#include <cmath>
#include <numbers>

#include "core/ops/elementwise/unary_kernel.h"
#include "core/kernels/kernel_registry.h"
#include "core/kernels/simd/float_math.h"

namespace caesura {
namespace {

// x * Phi(x)
template <typename T>
T GeluExact(T x) {
  return x * math::NormalAt(x).share;
}

// x/2 * (1 + tanh(u)) with u = sqrt(2/pi) * (x + 0.044715 x^3), which is x * sigmoid(2 u)
template <typename T>
T GeluTanh(T x) {
  constexpr T kScale = T(2 * std::numbers::sqrt2 * std::numbers::inv_sqrtpi);
  return x * math::Sigmoid(kScale * (x + T(0.044715) * x * x * x));
}

Status CreateGelu(KernelInfo& info) {
  const std::string approximate = info.Attr<std::string>("approximate", "none");
  if (approximate == "none") return CreateFloatMap<[](auto x) { return GeluExact(x); }>(info);
  if (approximate == "tanh") return CreateFloatMap<[](auto x) { return GeluTanh(x); }>(info);
  return info.Invalid("approximate: expected none or tanh, got '" + approximate + "'");
}

// The ops below have attributes; their defaults are ONNX's.

struct LeakyReluOp {
  float alpha;
  explicit LeakyReluOp(const KernelInfo& info) : alpha(info.Attr<float>("alpha", 0.01f)) {}
  template <typename T>
  T operator()(T x) const {
    return x < 0 ? T(alpha) * x : x;
  }
};

struct ThresholdedReluOp {
  float alpha;
  explicit ThresholdedReluOp(const KernelInfo& info) : alpha(info.Attr<float>("alpha", 1.0f)) {}
  template <typename T>
  T operator()(T x) const {
    return x > T(alpha) ? x : T{0};  // of NaN, too: the schema's function compares so
  }
};

struct EluOp {
  float alpha;
  explicit EluOp(const KernelInfo& info) : alpha(info.Attr<float>("alpha", 1.0f)) {}
  template <typename T>
  T operator()(T x) const {
    return x < 0 ? T(alpha) * math::ExpMinusOne(x) : x;
  }
};

struct SeluOp {
  float alpha, gamma;
  explicit SeluOp(const KernelInfo& info)
      : alpha(info.Attr<float>("alpha", 1.67326319217681884765625f)),
        gamma(info.Attr<float>("gamma", 1.05070102214813232421875f)) {}
  template <typename T>
  T operator()(T x) const {
    return T(gamma) * (x <= 0 ? T(alpha) * math::ExpMinusOne(x) : x);
  }
};

struct CeluOp {
  float alpha;
  explicit CeluOp(const KernelInfo& info) : alpha(info.Attr<float>("alpha", 1.0f)) {}
  template <typename T>
  T operator()(T x) const {
    return x < 0 ? T(alpha) * math::ExpMinusOne(x / T(alpha)) : x;
  }
};

struct HardSigmoidOp {
  float alpha, beta;
  explicit HardSigmoidOp(const KernelInfo& info)
      : alpha(info.Attr<float>("alpha", 0.2f)), beta(info.Attr<float>("beta", 0.5f)) {}
  template <typename T>
  T operator()(T x) const {
    const T line = T(alpha) * x + T(beta);
    return line < 0 ? T{0} : line > 1 ? T{1} : line;
  }
};

struct SwishOp {
  float alpha;
  explicit SwishOp(const KernelInfo& info) : alpha(info.Attr<float>("alpha", 1.0f)) {}
  template <typename T>
  T operator()(T x) const {
    return x * math::Sigmoid(T(alpha) * x);
  }
};

// x * max(0, min(1, x/6 + 1/2))
template <typename T>
T HardSwishOf(T x) {
  const T gate = x / 6 + T(0.5);
  return x * (gate < 0 ? T{0} : gate > 1 ? T{1} : gate);
}

constexpr UnaryRow kActivationRows[] = {
    {"Relu", kFloatTypes | kSignedTypes,
     CreateNumericMap<[](auto x) { return x < 0 ? decltype(x){0} : x; }>},
    {"LeakyRelu", kFloatTypes, CreateFloatOp<LeakyReluOp>},
    {"ThresholdedRelu", kFloatTypes, CreateFloatOp<ThresholdedReluOp>},
    {"Elu", kFloatTypes, CreateFloatOp<EluOp>},
    {"Selu", kFloatTypes, CreateFloatOp<SeluOp>},
    {"Celu", kFloatTypes, CreateFloatOp<CeluOp>},
    {"Gelu", kFloatTypes, CreateGelu},
    {"Sigmoid", kFloatTypes, CreateFloatMap<[](auto x) { return math::Sigmoid(x); }>},
    {"Tanh", kFloatTypes, CreateFloatMap<[](auto x) { return math::Tanh(x); }>},
    {"HardSigmoid", kFloatTypes, CreateFloatOp<HardSigmoidOp>},
    {"HardSwish", kFloatTypes, CreateFloatMap<[](auto x) { return HardSwishOf(x); }>},
    {"Softplus", kFloatTypes, CreateFloatMap<[](auto x) { return math::Softplus(x); }>},
    {"Softsign", kFloatTypes, CreateFloatMap<[](auto x) { return x / (1 + std::fabs(x)); }>},
    {"Mish", kFloatTypes, CreateFloatMap<[](auto x) { return x * math::TanhOfSoftplus(x); }>},
    {"Swish", kFloatTypes, CreateFloatOp<SwishOp>},
};

}  // namespace

void RegisterActivation(KernelRegistry& registry) { RegisterUnaryRows(registry, kActivationRows); }

}  // namespace caesura
