// SPDX-License-Identifier: Apache-2.0
// Gradient rules of elementwise arithmetic. PyTorch's choices where the derivative has a kink.
#include <cmath>

#include "training/gradient/gradient_rules.h"

namespace caesura::gradient {
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

std::vector<GradientRule> ElementwiseRules() {
  return {
      {.op_type = "Abs", .function = AbsRule},
      {.op_type = "Acos", .function = AcosRule},
      {.op_type = "Acosh", .function = AcoshRule},
      {.op_type = "Add", .function = AddRule, .broadcasts = true},
      {.op_type = "Asin", .function = AsinRule},
      {.op_type = "Asinh", .function = AsinhRule},
      {.op_type = "Atan", .function = AtanRule},
      {.op_type = "Atanh", .function = AtanhRule},
      {.op_type = "Cast", .function = CastRule},
      {.op_type = "CastLike", .function = CastRule, .stops = {1}},
      {.op_type = "Clip", .function = ClipRule, .broadcasts = true},
      {.op_type = "Cos", .function = CosRule},
      {.op_type = "Cosh", .function = CoshRule},
      {.op_type = "Div", .function = DivRule, .broadcasts = true},
      {.op_type = "Erf", .function = ErfRule},
      {.op_type = "Exp", .function = ExpRule},
      {.op_type = "Identity", .function = IdentityRule},
      {.op_type = "Check", .function = IdentityRule, .domain = kCaesuraDomain, .stops = {1}},
      {.op_type = "Log", .function = LogRule},
      {.op_type = "Max", .function = ExtremumRule, .broadcasts = true},
      {.op_type = "Mean", .function = MeanRule, .broadcasts = true},
      {.op_type = "Min", .function = ExtremumRule, .broadcasts = true},
      {.op_type = "Mod", .function = ModRule, .broadcasts = true},
      {.op_type = "Mul", .function = MulRule, .broadcasts = true},
      {.op_type = "Neg", .function = NegRule},
      {.op_type = "Pow", .function = PowRule, .broadcasts = true},
      {.op_type = "Reciprocal", .function = ReciprocalRule},
      {.op_type = "Sin", .function = SinRule},
      {.op_type = "Sinh", .function = SinhRule},
      {.op_type = "Sqrt", .function = SqrtRule},
      {.op_type = "Sub", .function = SubRule, .broadcasts = true},
      {.op_type = "Sum", .function = SumRule, .broadcasts = true},
      {.op_type = "Tan", .function = TanRule},
      {.op_type = "Where", .function = WhereRule, .broadcasts = true, .stops = {0}},
  };
}

}  // namespace caesura::gradient
