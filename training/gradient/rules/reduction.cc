// SPDX-License-Identifier: Apache-2.0
// Gradient rules of reductions and running sums. Each reduction spreads dY back over the axes that
// it went over.
#include "training/gradient/gradient_rules.h"

namespace caesura::gradient {
namespace {

// True when the node reduces nothing: empty axes that mean none.
bool IsNoOp(const GradientContext& g) {
  if (g.IntAttr("noop_with_empty_axes", 0) == 0) return false;
  const Tensor* axes = g.ConstantInput(1);
  return !g.HasInput(1) || (axes != nullptr && axes->elements() == 0);
}

// True if the axes are stated at all; empty ones mean all.
bool HasAxes(const GradientContext& g) {
  const Tensor* axes = g.ConstantInput(1);
  return g.HasInput(1) && (axes == nullptr || axes->elements() > 0);
}

// A value of the output's shape with the reduced axes as ones again.
Expr Restored(const GradientContext& g, Expr v) {
  if (IsNoOp(g) || g.IntAttr("keepdims", 1) != 0 || !HasAxes(g))
    return v;  // a scalar broadcasts by itself
  return Op("Unsqueeze", {v, g.input(1)});
}

// A sum over the same axes, kept as ones.
Expr Resummed(const GradientContext& g, Expr v) {
  if (IsNoOp(g)) return v;
  return Op("ReduceSum", HasAxes(g) ? Exprs{v, g.input(1)} : Exprs{v}, {{"keepdims", int64_t{1}}});
}

Expr SpreadOver(const GradientContext& g, Expr v) { return Expand(v, ShapeOf(g.input(0))); }

// Y = sum of X;  dX = dY
void ReduceSumRule(GradientContext& g) {
  g.SetInputGradient(0, SpreadOver(g, Restored(g, g.dY())));
}

// 1 / the product of some dims, in the dtype of `like`.
Expr InverseCount(Expr dims, Expr like) {
  const Expr count = Op("ReduceProd", {dims}, {{"keepdims", int64_t{0}}});
  const DType wide = like.dtype() == DType::kFloat64 ? DType::kFloat64 : DType::kFloat32;
  return Cast(Reciprocal(Cast(count, wide)), like.dtype());
}

// Y = mean of X over n elements;  dX = dY / n
void ReduceMeanRule(GradientContext& g) {
  if (IsNoOp(g)) return g.SetInputGradient(0, g.dY());
  const Expr shape = ShapeOf(g.input(0)), dims = HasAxes(g) ? Gather(shape, g.input(1), 0) : shape;
  g.SetInputGradient(0, SpreadOver(g, Restored(g, g.dY()) * InverseCount(dims, g.dY())));
}

// Y = max of X, or min;  dX = dY [X = Y] / (how many elements equal Y)
void ReduceExtremumRule(GradientContext& g) {
  const Expr mask = Mask(Equal(g.input(0), Restored(g, g.output())), g.dY());
  g.SetInputGradient(0, mask * (Restored(g, g.dY()) / Resummed(g, mask)));
}

// Y = product of X;  dX = dY times the product of the others
void ReduceProdRule(GradientContext& g) {
  const Expr axes = HasAxes(g) ? g.input(1) : Expr();
  if (IsNoOp(g)) return g.SetInputGradient(0, g.dY());
  g.SetInputGradient(0, TrainingOp("ReduceProdGrad", {g.dY(), g.input(0), axes}, g.attributes()));
}

// Y = sum of |X|;  dX = dY sign X
void ReduceL1Rule(GradientContext& g) {
  g.SetInputGradient(0, Restored(g, g.dY()) * Sign(g.input(0)));
}

// Y = sqrt(sum of X^2);  dX = dY X / Y, 0 where Y = 0
void ReduceL2Rule(GradientContext& g) {
  const Expr zero = Number(0, g.dY());
  const Expr ratio = Where(Equal(g.output(), zero), zero, g.dY() / g.output());
  g.SetInputGradient(0, Restored(g, ratio) * g.input(0));
}

// Y = ln(sum of X);  dX = dY / sum of X
void ReduceLogSumRule(GradientContext& g) {
  g.SetInputGradient(0, SpreadOver(g, Restored(g, g.dY() * Exp(-g.output()))));
}

// Y = ln(sum of e^X);  dX = dY e^(X - Y), 0 where all X are -infinity
void ReduceLogSumExpRule(GradientContext& g) {
  const Expr nothing = Op("IsInf", {g.output()}, {{"detect_positive", int64_t{0}}});
  const Expr y = Where(nothing, Number(0, g.dY()), g.output());
  g.SetInputGradient(0, Restored(g, g.dY()) * Exp(g.input(0) - Restored(g, y)));
}

// Y = sum of X^2;  dX = 2 dY X
void ReduceSumSquareRule(GradientContext& g) {
  g.SetInputGradient(0, Restored(g, g.dY() * 2.0) * g.input(0));
}

// Y_i = X_1 + ... + X_i;  dX_i = dY_i + ... + dY_n: the running sum from the other end
void CumSumRule(GradientContext& g) {
  const AttributeMap attributes = {{"exclusive", g.IntAttr("exclusive", 0)},
                                   {"reverse", 1 - g.IntAttr("reverse", 0)}};
  g.SetInputGradient(0, Op("CumSum", {g.dY(), g.input(1)}, attributes));
}

// Y_i = X_1 ... X_i;  dX_i = sum over j >= i of dY_j times the other factors of Y_j
void CumProdRule(GradientContext& g) {
  g.SetInputGradient(0,
                     TrainingOp("CumProdGrad", {g.dY(), g.input(0), g.input(1)}, g.attributes()));
}

}  // namespace

std::vector<GradientRule> ReductionRules() {
  return {
      {.op_type = "CumProd", .function = CumProdRule, .stops = {1}},
      {.op_type = "CumSum", .function = CumSumRule, .stops = {1}},
      {.op_type = "ReduceL1", .function = ReduceL1Rule, .stops = {1}},
      {.op_type = "ReduceL2", .function = ReduceL2Rule, .stops = {1}},
      {.op_type = "ReduceLogSum", .function = ReduceLogSumRule, .stops = {1}},
      {.op_type = "ReduceLogSumExp", .function = ReduceLogSumExpRule, .stops = {1}},
      {.op_type = "ReduceMax", .function = ReduceExtremumRule, .stops = {1}},
      {.op_type = "ReduceMean", .function = ReduceMeanRule, .stops = {1}},
      {.op_type = "ReduceMin", .function = ReduceExtremumRule, .stops = {1}},
      {.op_type = "ReduceProd", .function = ReduceProdRule, .stops = {1}},
      {.op_type = "ReduceSum", .function = ReduceSumRule, .stops = {1}},
      {.op_type = "ReduceSumSquare", .function = ReduceSumSquareRule, .stops = {1}},
  };
}

}  // namespace caesura::gradient
