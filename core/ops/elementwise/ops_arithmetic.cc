// SPDX-License-Identifier: Apache-2.0
// The rows of elementwise arithmetic (core/graph/op_def.h), and their gradient rules.
// A rule takes the side that PyTorch takes at a kink.
#include <cmath>
#include <vector>

#include "core/gradient/gradient_rules.h"
#include "core/graph/op_def.h"

namespace caesura {
namespace gradient {
namespace {

// Y = |X|;  dX = dY sign X
void AbsRule(GradientContext& g) { g.SetInputGradient(0, g.dY() * Sign(g.input(0))); }

// Y = -X;  dX = -dY
void NegRule(GradientContext& g) { g.SetInputGradient(0, -g.dY()); }

// Y = X;  dX = dY
void IdentityRule(GradientContext& g) { g.SetInputGradient(0, g.dY()); }

// Y = X in another precision;  dX = dY in X's precision (the driver casts)
void CastRule(GradientContext& g) {
  const Expr x = g.input(0);
  g.SetInputGradient(0, x.dtype() == DType::kUndefined ? Op("CastLike", {g.dY(), x}) : g.dY());
}

// Y = e^X;  dX = dY Y
void ExpRule(GradientContext& g) { g.SetInputGradient(0, g.dY() * g.output()); }

// Y = ln X;  dX = dY / X
void LogRule(GradientContext& g) { g.SetInputGradient(0, g.dY() / g.input(0)); }

// Y = sqrt X;  dX = dY / (2 Y)
void SqrtRule(GradientContext& g) { g.SetInputGradient(0, g.dY() * 0.5 / g.output()); }

// Y = 1 / X;  dX = -dY Y^2
void ReciprocalRule(GradientContext& g) { g.SetInputGradient(0, -(g.dY() * Square(g.output()))); }

// Y = erf X;  dX = dY 2/sqrt(pi) e^(-X^2)
void ErfRule(GradientContext& g) {
  g.SetInputGradient(0, g.dY() * (Exp(-Square(g.input(0))) * (2 / std::sqrt(M_PI))));
}

// Y = sin X;  dX = dY cos X
void SinRule(GradientContext& g) { g.SetInputGradient(0, g.dY() * Cos(g.input(0))); }

// Y = cos X;  dX = -dY sin X
void CosRule(GradientContext& g) { g.SetInputGradient(0, -(g.dY() * Sin(g.input(0)))); }

// Y = tan X;  dX = dY (1 + Y^2)
void TanRule(GradientContext& g) { g.SetInputGradient(0, g.dY() * (1 + Square(g.output()))); }

// Y = asin X;  dX = dY / sqrt(1 - X^2)
void AsinRule(GradientContext& g) { g.SetInputGradient(0, g.dY() / Sqrt(1 - Square(g.input(0)))); }

// Y = acos X;  dX = -dY / sqrt(1 - X^2)
void AcosRule(GradientContext& g) {
  g.SetInputGradient(0, -(g.dY() / Sqrt(1 - Square(g.input(0)))));
}

// Y = atan X;  dX = dY / (1 + X^2)
void AtanRule(GradientContext& g) { g.SetInputGradient(0, g.dY() / (1 + Square(g.input(0)))); }

// Y = sinh X;  dX = dY cosh X
void SinhRule(GradientContext& g) { g.SetInputGradient(0, g.dY() * Cosh(g.input(0))); }

// Y = cosh X;  dX = dY sinh X
void CoshRule(GradientContext& g) { g.SetInputGradient(0, g.dY() * Sinh(g.input(0))); }

// Y = asinh X;  dX = dY / sqrt(X^2 + 1)
void AsinhRule(GradientContext& g) { g.SetInputGradient(0, g.dY() / Sqrt(Square(g.input(0)) + 1)); }

// Y = acosh X;  dX = dY / sqrt(X^2 - 1)
void AcoshRule(GradientContext& g) { g.SetInputGradient(0, g.dY() / Sqrt(Square(g.input(0)) - 1)); }

// Y = atanh X;  dX = dY / (1 - X^2)
void AtanhRule(GradientContext& g) { g.SetInputGradient(0, g.dY() / (1 - Square(g.input(0)))); }

// Y = A + B;  dA = dB = dY
void AddRule(GradientContext& g) {
  g.SetInputGradient(0, g.dY());
  g.SetInputGradient(1, g.dY());
}

// Y = A - B;  dA = dY, dB = -dY
void SubRule(GradientContext& g) {
  g.SetInputGradient(0, g.dY());
  g.SetInputGradient(1, -g.dY());
}

// Y = A B;  dA = dY B, dB = dY A
void MulRule(GradientContext& g) {
  g.SetInputGradient(0, g.dY() * g.input(1));
  g.SetInputGradient(1, g.dY() * g.input(0));
}

// Y = A / B;  dA = dY / B, dB = -dY Y / B
void DivRule(GradientContext& g) {
  const Expr dA = g.dY() / g.input(1);
  g.SetInputGradient(0, dA);
  g.SetInputGradient(1, -(dA * g.output()));
}

// True when input i is the constant `number`, of one element.
bool IsConstant(const GradientContext& g, int i, double number) {
  const Tensor* tensor = g.ConstantInput(i);
  return tensor != nullptr && tensor->elements() == 1 && tensor->dtype() != DType::kString &&
         tensor->ToVector<double>()[0] == number;
}

// Y = X^P;  dX = dY P X^(P-1) (0 where P = 0), dP = dY Y ln X (0 where X = 0 and P >= 0)
void PowRule(GradientContext& g) {
  const Expr x = g.input(0);
  if (IsConstant(g, 1, 2)) return g.SetInputGradient(0, g.dY() * (x * 2.0));
  const Expr p = g.input(1).dtype() == x.dtype() ? g.input(1) : Op("CastLike", {g.input(1), x});
  const Expr zero = Number(0, x);
  g.SetInputGradient(0, g.dY() * Where(Equal(p, zero), zero, p * Op("Pow", {x, p - 1.0})));
  const Expr flat = And(Equal(x, zero), GreaterOrEqual(p, zero));
  g.SetInputGradient(1, g.dY() * Where(flat, zero, g.output() * Log(x)));
}

// Y = A - n B with the whole number n = (A - Y) / B;  dA = dY, dB = -dY n
void ModRule(GradientContext& g) {
  g.SetInputGradient(0, g.dY());
  g.SetInputGradient(1, -(g.dY() * Op("Round", {(g.input(0) - g.output()) / g.input(1)})));
}

// Y = max(X1, X2, ...), or min;  dXi = dY [Xi = Y] / (how many of them equal Y). Of two, both take
// all of dY where one is NaN.
void ExtremumRule(GradientContext& g) {
  if (g.input_count() == 2) {
    const Expr a = g.input(0), b = g.input(1), zero = Number(0, g.dY());
    const Expr share = Where(Equal(a, b), g.dY() / 2, g.dY()), less = Less(a, b),
               greater = Greater(a, b);
    const bool is_max = g.node().Is("Max");
    g.SetInputGradient(0, Where(is_max ? less : greater, zero, share));
    g.SetInputGradient(1, Where(is_max ? greater : less, zero, share));
    return;
  }
  Exprs masks;
  for (int i = 0; i < g.input_count(); ++i)
    masks.push_back(Mask(Equal(g.input(i), g.output()), g.output()));
  Expr ties = masks[0];
  for (size_t i = 1; i < masks.size(); ++i) ties = ties + masks[i];
  const Expr share = g.dY() / ties;
  for (int i = 0; i < g.input_count(); ++i) g.SetInputGradient(i, share * masks[i]);
}

// Y = X1 + X2 + ...;  dXi = dY
void SumRule(GradientContext& g) {
  for (int i = 0; i < g.input_count(); ++i) g.SetInputGradient(i, g.dY());
}

// Y = (X1 + ... + Xn) / n;  dXi = dY / n
void MeanRule(GradientContext& g) {
  const Expr share = g.dY() / static_cast<double>(g.input_count());
  for (int i = 0; i < g.input_count(); ++i) g.SetInputGradient(i, share);
}

// Y = A where C, else B;  dA = dY where C, dB = dY where not C
void WhereRule(GradientContext& g) {
  const Expr zero = Number(0, g.dY());
  g.SetInputGradient(1, Where(g.input(0), g.dY(), zero));
  g.SetInputGradient(2, Where(g.input(0), zero, g.dY()));
}

// Y = min(max(X, low), high);  dX = dY inside (bounds included), dlow = dY below, dhigh = dY above
// or if high < low
void ClipRule(GradientContext& g) {
  const Expr x = g.input(0), low = g.input(1), high = g.input(2), zero = Number(0, x);
  Expr inside = low ? GreaterOrEqual(x, low) : Expr();
  if (high) inside = inside ? And(inside, LessOrEqual(x, high)) : LessOrEqual(x, high);
  g.SetInputGradient(0, inside ? Where(inside, g.dY(), zero) : g.dY());
  if (g.Needs(1)) {
    const Expr below = high ? And(Less(x, low), LessOrEqual(low, high)) : Less(x, low);
    g.SetInputGradient(1, Where(below, g.dY(), zero));
  }
  if (!g.Needs(2)) return;
  const Expr above = low ? Or(Greater(x, high), Less(high, low)) : Greater(x, high);
  g.SetInputGradient(2, Where(above, g.dY(), zero));
}

}  // namespace
}  // namespace gradient

// clang-format off
std::vector<OpDef> ArithmeticOps() {
  using View = OpDef::View;
  constexpr int kAll = OpDef::kAll;
  return {
    {.op_type = "Abs", .elementwise = true, .half_inputs = 1, .rule = {.function = gradient::AbsRule}},
    {.op_type = "Acos", .rule = {.function = gradient::AcosRule}},
    {.op_type = "Acosh", .rule = {.function = gradient::AcoshRule}},
    {.op_type = "Add", .elementwise = true, .arithmetic = true, .half_inputs = 2,
     .rule = {.function = gradient::AddRule, .broadcasts = true}},
    {.op_type = "Asin", .rule = {.function = gradient::AsinRule}},
    {.op_type = "Asinh", .rule = {.function = gradient::AsinhRule}},
    {.op_type = "Atan", .rule = {.function = gradient::AtanRule}},
    {.op_type = "Atanh", .rule = {.function = gradient::AtanhRule}},
    {.op_type = "Cast", .elementwise = true, .rule = {.function = gradient::CastRule}},
    {.op_type = "CastLike", .rule = {.function = gradient::CastRule, .stops = {1}},
     .derivative_note = "the type only comes from input 1"},
    {.op_type = "Clip", .elementwise = true, .half_inputs = 3,
     .rule = {.function = gradient::ClipRule, .broadcasts = true}, .derivative_note = "bounds too"},
    {.op_type = "Cos", .elementwise = true, .rule = {.function = gradient::CosRule}},
    {.op_type = "Cosh", .rule = {.function = gradient::CoshRule}},
    {.op_type = "Div", .elementwise = true, .arithmetic = true, .half_inputs = 2,
     .rule = {.function = gradient::DivRule, .broadcasts = true}},
    {.op_type = "Erf", .elementwise = true, .rule = {.function = gradient::ErfRule}},
    {.op_type = "Exp", .elementwise = true, .rule = {.function = gradient::ExpRule}},
    {.op_type = "Identity", .view = View::kSame, .half_inputs = 1,
     .rule = {.function = gradient::IdentityRule}},
    {.op_type = "Log", .elementwise = true, .rule = {.function = gradient::LogRule}},
    {.op_type = "Max", .elementwise = true, .half_inputs = kAll,
     .rule = {.function = gradient::ExtremumRule, .broadcasts = true}, .derivative_note = "ties share"},
    {.op_type = "Mean", .elementwise = true, .rule = {.function = gradient::MeanRule, .broadcasts = true}},
    {.op_type = "Min", .elementwise = true, .half_inputs = kAll,
     .rule = {.function = gradient::ExtremumRule, .broadcasts = true}, .derivative_note = "ties share"},
    {.op_type = "Mod", .rule = {.function = gradient::ModRule, .broadcasts = true},
     .derivative_note = "B through the whole quotient, which is constant almost everywhere"},
    {.op_type = "Mul", .elementwise = true, .arithmetic = true, .half_inputs = 2,
     .rule = {.function = gradient::MulRule, .broadcasts = true}},
    {.op_type = "Neg", .elementwise = true, .half_inputs = 1, .rule = {.function = gradient::NegRule}},
    {.op_type = "Pow", .elementwise = true, .rule = {.function = gradient::PowRule, .broadcasts = true},
     .derivative_note = "exponent too"},
    {.op_type = "Reciprocal", .elementwise = true, .rule = {.function = gradient::ReciprocalRule}},
    {.op_type = "Sin", .elementwise = true, .rule = {.function = gradient::SinRule}},
    {.op_type = "Sinh", .rule = {.function = gradient::SinhRule}},
    {.op_type = "Sqrt", .elementwise = true, .rule = {.function = gradient::SqrtRule}},
    {.op_type = "Sub", .elementwise = true, .arithmetic = true, .half_inputs = 2,
     .rule = {.function = gradient::SubRule, .broadcasts = true}},
    {.op_type = "Sum", .elementwise = true, .rule = {.function = gradient::SumRule, .broadcasts = true}},
    {.op_type = "Tan", .rule = {.function = gradient::TanRule}},
    {.op_type = "Where", .elementwise = true, .half_inputs = 3,
     .rule = {.function = gradient::WhereRule, .broadcasts = true, .stops = {0}}},
    // Check (X, holds[bool]) -> Y  Y = X where all of `holds` is true, otherwise the run fails with the attribute
    // `message`
    {.op_type = "Check", .domain = kCaesuraDomain, .min_inputs = 2, .max_inputs = 2, .type_of_output = {0},
     .rule = {.function = gradient::IdentityRule, .stops = {1}},
     .body_refusal = "it fails where a condition does not hold, and no operator of ONNX can"},
  };
}
// clang-format on

}  // namespace caesura
