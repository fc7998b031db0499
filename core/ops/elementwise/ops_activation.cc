// SPDX-License-Identifier: Apache-2.0
// The rows of activations (core/graph/op_def.h), and their gradient rules.
// A rule takes the side that PyTorch takes, at a kink and where X is NaN.
#include <cmath>
#include <vector>

#include "core/gradient/gradient_rules.h"
#include "core/gradient/op_body.h"
#include "core/graph/op_def.h"

namespace caesura {
namespace gradient {
namespace {

// Y = max(X, 0);  dX = dY but where Y <= 0
void ReluRule(GradientContext& g) {
  g.SetInputGradient(0, TrainingOp("ReluGrad", {g.dY(), g.output()}));
}

// Y = s(X) = 1 / (1 + e^-X);  dX = dY Y (1 - Y)
void SigmoidRule(GradientContext& g) {
  g.SetInputGradient(0, TrainingOp("SigmoidGrad", {g.dY(), g.output()}));
}

// Y = tanh X;  dX = dY (1 - Y^2)
void TanhRule(GradientContext& g) {
  g.SetInputGradient(0, TrainingOp("TanhGrad", {g.dY(), g.output()}));
}

// Y = X Phi(X);  dX = dY (Phi(X) + X phi(X)), or the derivative of the tanh form
void GeluRule(GradientContext& g) {
  g.SetInputGradient(0,
                     TrainingOp("GeluGrad", {g.dY(), g.input(0)}, g.Attributes({"approximate"})));
}

// Y = X where X > 0, else a X;  dX = dY, or a dY
void LeakyReluRule(GradientContext& g) {
  const Expr x = g.input(0);
  g.SetInputGradient(0,
                     Where(Greater(x, Number(0, x)), g.dY(), g.dY() * g.FloatAttr("alpha", 0.01)));
}

// Y = X where X > 0, else S X;  dX = dY or S dY, dS = X dY where X <= 0
void PReluRule(GradientContext& g) {
  const Expr x = g.input(0), zero = Number(0, x), positive = Greater(x, zero);
  g.SetInputGradient(0, Where(positive, g.dY(), g.dY() * g.input(1)));
  if (!g.Needs(1)) return;
  g.SetInputGradient(1, SumTo(Where(positive, zero, g.dY() * x), g.input(1)));
}

// Y = X where X > 0, else a (e^X - 1);  dX = dY, or dY (Y + a)
void EluRule(GradientContext& g) {
  const Expr x = g.input(0);
  const Expr curved = g.dY() * (g.output() + g.FloatAttr("alpha", 1));
  g.SetInputGradient(0, Where(LessOrEqual(x, Number(0, x)), curved, g.dY()));
}

// Y = c X where X > 0, else c a (e^X - 1);  dX = c dY, or dY (Y + c a)
void SeluRule(GradientContext& g) {
  const double a = g.FloatAttr("alpha", 1.67326319217681884765625),
               c = g.FloatAttr("gamma", 1.05070102214813232421875);
  const Expr x = g.input(0);
  g.SetInputGradient(
      0, Where(LessOrEqual(x, Number(0, x)), g.dY() * (g.output() + c * a), g.dY() * c));
}

// Y = X where X > 0, else a (e^(X/a) - 1);  dX = dY, or dY (Y / a + 1)
void CeluRule(GradientContext& g) {
  const Expr x = g.input(0);
  const Expr curved = g.dY() * (g.output() / g.FloatAttr("alpha", 1) + 1);
  g.SetInputGradient(0, Where(LessOrEqual(x, Number(0, x)), curved, g.dY()));
}

// Y = ln(1 + e^X);  dX = dY s(X)
void SoftplusRule(GradientContext& g) { g.SetInputGradient(0, g.dY() * Sigmoid(g.input(0))); }

// Y = X / (1 + |X|);  dX = dY / (1 + |X|)^2
void SoftsignRule(GradientContext& g) {
  g.SetInputGradient(0, g.dY() / Square(1 + Abs(g.input(0))));
}

// Y = a X + b clipped to [0, 1];  dX = a dY where 0 < Y < 1
void HardSigmoidRule(GradientContext& g) {
  const Expr y = g.output(), zero = Number(0, y);
  const Expr inside = And(Greater(y, zero), Less(y, Number(1, y)));
  g.SetInputGradient(0, Where(inside, g.dY() * g.FloatAttr("alpha", 0.2), zero));
}

// Y = X clip(X/6 + 1/2, 0, 1);  dX = dY (X/3 + 1/2) where |X| < 3, dY above, 0 below
void HardSwishRule(GradientContext& g) {
  const Expr x = g.input(0), dy = g.dY();
  const Expr above = Where(Less(x, Number(3, x)), dy * (x / 3 + 0.5), dy);
  g.SetInputGradient(0, Where(LessOrEqual(x, Number(-3, x)), Number(0, x), above));
}

// Y = X s(a X);  dX = dY (s + Y a (1 - s)) with s = s(a X)
void SwishRule(GradientContext& g) {
  const double a = g.FloatAttr("alpha", 1);
  const Expr x = g.input(0), s = Sigmoid(a == 1 ? x : x * a);
  g.SetInputGradient(0, g.dY() * (s + (a == 1 ? g.output() : g.output() * a) * (1 - s)));
}

// Y = w B with w = A s, s = s(a A);  dA = dY B (s + w a (1 - s)), dB = dY w
void SwiGluRule(GradientContext& g) {
  const double a = g.FloatAttr("alpha", 1);
  const Expr x = g.input(0), s = Sigmoid(x * a), w = x * s;
  g.SetInputGradient(0, g.dY() * g.input(1) * (s + w * a * (1 - s)));
  g.SetInputGradient(1, g.dY() * w);
}

// Y = X t with t = tanh(ln(1 + e^X));  dX = dY (t + X (1 - t^2) s(X))
void MishRule(GradientContext& g) {
  const Expr x = g.input(0), t = Tanh(Op("Softplus", {x}));
  g.SetInputGradient(0, g.dY() * (t + x * (1 - Square(t)) * Sigmoid(x)));
}

// Y = X where X > a, else 0;  dX = dY where X > a
void ThresholdedReluRule(GradientContext& g) {
  const Expr x = g.input(0);
  g.SetInputGradient(0,
                     Where(Greater(x, Number(g.FloatAttr("alpha", 1), x)), g.dY(), Number(0, x)));
}

// Y = X moved towards 0 by b where |X| > l, else 0;  dX = dY where |X| > l
void ShrinkRule(GradientContext& g) {
  const Expr x = g.input(0), l = Number(g.FloatAttr("lambd", 0.5), x);
  g.SetInputGradient(0, Where(Greater(Abs(x), l), g.dY(), Number(0, x)));
}

// D = dY where Y > 0;  ddY = G where Y > 0
void ReluGradRule(GradientContext& g) {
  g.SetInputGradient(0, TrainingOp("ReluGrad", {g.dY(), g.input(1)}));
}

// D = dY Y (1 - Y);  ddY = G Y (1 - Y), dY' = G dY (1 - 2 Y)
void SigmoidGradRule(GradientContext& g) {
  g.SetInputGradient(0, TrainingOp("SigmoidGrad", {g.dY(), g.input(1)}));
  g.SetInputGradient(1, g.dY() * g.input(0) * (1 - g.input(1) * 2.0));
}

// D = dY (1 - Y^2);  ddY = G (1 - Y^2), dY' = -2 G dY Y
void TanhGradRule(GradientContext& g) {
  g.SetInputGradient(0, TrainingOp("TanhGrad", {g.dY(), g.input(1)}));
  g.SetInputGradient(1, g.dY() * g.input(0) * g.input(1) * -2.0);
}

// Y = X (1 + t) / 2 with t = tanh u, u = k (X + a X^3);  Y'' = (1 - t^2) (u' + X (u'' / 2 - t
// u'^2))
Expr TanhGeluCurvature(Expr x) {
  const double k = std::sqrt(2 / M_PI), a = 0.044715;
  const Expr t = Tanh((x + Pow(x, 3) * a) * k), slope = (1 + Square(x) * (3 * a)) * k;
  return (1 - Square(t)) * (slope + x * (x * (3 * a * k) - t * Square(slope)));
}

// D = dY gelu'(X);  ddY = G gelu'(X), dX = G dY gelu''(X), which is phi(X) (2 - X^2)
void GeluGradRule(GradientContext& g) {
  g.SetInputGradient(0, TrainingOp("GeluGrad", {g.dY(), g.input(1)}, g.attributes()));
  if (!g.Needs(1)) return;
  const Expr x = g.input(1), phi = Exp(Square(x) * -0.5) / std::sqrt(2 * M_PI);
  const bool is_exact = g.Attr<std::string>("approximate", "none") == "none";
  g.SetInputGradient(
      1, g.dY() * g.input(0) * (is_exact ? phi * (2 - Square(x)) : TanhGeluCurvature(x)));
}

// --- bodies, with the formulas of the rows below ---

void ReluGradBody(OpBody& b) {
  const Expr dy = b.input(0), y = b.input(1);
  b.SetOutput(0, Where(LessOrEqual(y, Number(0, y)), Number(0, dy), dy));
}

void SigmoidGradBody(OpBody& b) {
  const Expr y = b.input(1);
  b.SetOutput(0, b.input(0) * y * (1 - y));
}

void TanhGradBody(OpBody& b) {
  const Expr y = b.input(1);
  b.SetOutput(0, b.input(0) * (1 - y * y));
}

// Phi(X) + X phi(X); in the tanh form, with u = c (X + k X^3) and t = tanh u,
// (1 + t) / 2 + X (1 - t^2) / 2 c (1 + 3 k X^2)
void GeluGradBody(OpBody& b) {
  const Expr x = b.input(1);
  if (b.Attr<std::string>("approximate", "none") == "none") {
    const Expr cdf = (Op("Erf", {x * M_SQRT1_2}) + 1) * 0.5;
    const Expr pdf = Exp(x * x * -0.5) * (0.5 * M_2_SQRTPI * M_SQRT1_2);
    return b.SetOutput(0, b.input(0) * (cdf + x * pdf));
  }
  const double c = M_2_SQRTPI * M_SQRT1_2, k = 0.044715;
  const Expr t = Tanh((x + x * x * x * k) * c);
  b.SetOutput(0,
              b.input(0) * ((t + 1) * 0.5 + x * (1 - t * t) * (x * x * (3 * k) + 1) * (0.5 * c)));
}

}  // namespace
}  // namespace gradient

// clang-format off
std::vector<OpDef> ActivationOps() {
  return {
    {.op_type = "Celu", .elementwise = true, .rule = {.function = gradient::CeluRule}},
    {.op_type = "Elu", .elementwise = true, .half_inputs = 1, .rule = {.function = gradient::EluRule}},
    {.op_type = "Gelu", .elementwise = true, .half_inputs = 1, .rule = {.function = gradient::GeluRule}},
    {.op_type = "HardSigmoid", .elementwise = true, .half_inputs = 1,
     .rule = {.function = gradient::HardSigmoidRule}},
    {.op_type = "HardSwish", .elementwise = true, .half_inputs = 1,
     .rule = {.function = gradient::HardSwishRule}},
    {.op_type = "LeakyRelu", .elementwise = true, .half_inputs = 1,
     .rule = {.function = gradient::LeakyReluRule}},
    {.op_type = "Mish", .elementwise = true, .rule = {.function = gradient::MishRule}},
    {.op_type = "PRelu", .rule = {.function = gradient::PReluRule}},
    {.op_type = "Relu", .elementwise = true, .half_inputs = 1, .rule = {.function = gradient::ReluRule}},
    {.op_type = "Selu", .elementwise = true, .rule = {.function = gradient::SeluRule}},
    {.op_type = "Shrink", .elementwise = true, .rule = {.function = gradient::ShrinkRule}},
    {.op_type = "Sigmoid", .elementwise = true, .half_inputs = 1,
     .rule = {.function = gradient::SigmoidRule}},
    {.op_type = "Softplus", .elementwise = true, .rule = {.function = gradient::SoftplusRule}},
    {.op_type = "Softsign", .elementwise = true, .rule = {.function = gradient::SoftsignRule}},
    {.op_type = "SwiGLU", .rule = {.function = gradient::SwiGluRule}},
    {.op_type = "Swish", .elementwise = true, .half_inputs = 1, .rule = {.function = gradient::SwishRule}},
    {.op_type = "Tanh", .elementwise = true, .half_inputs = 1, .rule = {.function = gradient::TanhRule}},
    {.op_type = "ThresholdedRelu", .elementwise = true, .rule = {.function = gradient::ThresholdedReluRule}},
    // ReluGrad (dY, Y) -> dX  dX = dY, 0 where Y <= 0 (not where it is NaN)
    {.op_type = "ReluGrad", .domain = kCaesuraDomain, .min_inputs = 2, .max_inputs = 2, .type_of_output = {0},
     .elementwise = true, .rule = {.function = gradient::ReluGradRule, .stops = {1}}, .body = gradient::ReluGradBody},
    // GeluGrad (dY, X) -> dX  attribute approximate: "none" | "tanh"
    {.op_type = "GeluGrad", .domain = kCaesuraDomain, .min_inputs = 2, .max_inputs = 2, .type_of_output = {0},
     .elementwise = true, .rule = {.function = gradient::GeluGradRule}, .body = gradient::GeluGradBody},
    // SigmoidGrad (dY, Y), TanhGrad (dY, Y) -> dX
    {.op_type = "SigmoidGrad", .domain = kCaesuraDomain, .min_inputs = 2, .max_inputs = 2,
     .type_of_output = {0}, .elementwise = true, .rule = {.function = gradient::SigmoidGradRule},
     .body = gradient::SigmoidGradBody},
    {.op_type = "TanhGrad", .domain = kCaesuraDomain, .min_inputs = 2, .max_inputs = 2, .type_of_output = {0},
     .elementwise = true, .rule = {.function = gradient::TanhGradRule}, .body = gradient::TanhGradBody},
  };
}
// clang-format on

}  // namespace caesura
