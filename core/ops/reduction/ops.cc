// SPDX-License-Identifier: Apache-2.0
// The rows of reductions and sums along axes (core/graph/op_def.h), and their gradient rules.
#include <algorithm>
#include <cmath>
#include <functional>
#include <utility>
#include <optional>
#include <vector>

#include "core/gradient/gradient_rules.h"
#include "core/graph/op_def.h"
#include "core/ops/infer_types.h"
#include "core/ops/op_bodies.h"

namespace caesura {
namespace gradient {
namespace {

// Y = the k largest of X, at indices I;  dX = zeros with dX[I] = dY
void TopKRule(GradientContext& g) {
  const Expr indices = g.EnsureOutput(1, ValueType::Tensor(DType::kInt64));
  const AttributeMap axis = {{"axis", g.IntAttr("axis", -1)}};
  g.SetInputGradient(0, Op("ScatterElements", {ZerosLike(g.input(0)), indices, g.dY()}, axis));
}

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

// Y_i = ln(e^X_1 + ... + e^X_i);  dX_i = sum over j >= i of dY_j e^(X_i - Y_j)
void LogCumSumExpRule(GradientContext& g) {
  g.SetInputGradient(
      0, TrainingOp("LogCumSumExpGrad", {g.dY(), g.input(0), g.output()}, g.attributes()));
}

// D_i = sum over j >= i of dY_j p_ij, with p_ij = e^(X_i - Y_j);  ddY_j = a_j = sum over i <= j of
// G_i p_ij, dX_i = G_i D_i - (D_i of dY a), where Y is a function of X
void LogCumSumExpGradRule(GradientContext& g) {
  const Expr G = g.dY(), x = g.input(1), y = g.input(2);
  const auto weighed = [&](Expr v) {  // v >= 0
    return Exp(TrainingOp("LogCumSumExp", {x + Log(v)}, g.attributes()) - y);
  };
  const Expr a = weighed(Op("Relu", {G})) - weighed(Op("Relu", {-G}));
  g.SetInputGradient(0, a);
  if (!g.Needs(1)) return;
  const Expr rest = TrainingOp("LogCumSumExpGrad", {g.input(0) * a, x, y}, g.attributes());
  g.SetInputGradient(1, G * g.output() - rest);
}

// D = dY summed to a shape;  ddY = G broadcast back
void SumToRule(GradientContext& g) { g.SetInputGradient(0, Expand(g.dY(), ShapeOf(g.input(0)))); }

// --- bodies ---

// The first ones of equal elements are taken.
void TopKBody(OpBody& b) {
  const Exprs found = Ops("TopK", {b.input(0), Reshape(b.input(1), Ints({1}, b.input(0)))}, 2,
                          b.Attributes({"axis", "largest", "sorted"}));
  found[1].value()->set_type(ValueType::Tensor(DType::kInt64));
  b.SetOutput(0, found[0]);
  b.SetOutput(1, found[1]);
}

// Sums over the axes that are 1 in the shape, and over those that it lacks.
void SumToBody(OpBody& b) {
  const DType wide =
      b.output().dtype() == DType::kUndefined ? b.input(0).dtype() : b.output().dtype();
  const int rank = b.Rank(0);
  const auto& from = b.input(0).value()->type().shape;
  std::optional<std::vector<Dim>> to = b.output().value()->type().shape;
  if (const Tensor* known = b.Constant(1)) {
    to.emplace();
    for (int64_t i = 0; i < known->elements(); ++i)
      to->push_back(Dim{known->data<int64_t>()[i], ""});
  }
  Expr x = Cast(b.input(0), wide);
  if (!from || !to) return b.Refuse("needs to know the rank of what it sums to");
  const int missing = rank - static_cast<int>(to->size());
  std::vector<int64_t> axes;
  bool is_known = true;  // which axes are summed
  for (int i = 0; i < rank; ++i) {
    if (i < missing) {
      axes.push_back(i);
      continue;
    }
    const Dim &is = (*from)[i], &becomes = (*to)[i - missing];
    const bool is_same = (is.known() || !is.symbol.empty()) && is == becomes;
    if (becomes.known() && becomes.value == 1 && !is_same) axes.push_back(i);
    else if (!is_same && !becomes.known()) is_known = false;
  }
  if (is_known && static_cast<int>(axes.size()) == missing) {  // none that stays
    if (missing > 0) x = ReduceSum(x, axes, /*keepdims=*/false);
    return b.SetOutput(0, x);
  }
  if (is_known) {
    x = ReduceSum(x, axes, /*keepdims=*/true);
  } else {
    Expr wanted = b.input(1);
    if (missing > 0) wanted = Concat({Ints(std::vector<int64_t>(missing, 1), x), wanted}, 0);
    const Expr are_ones = Op("NonZero", {Equal(wanted, Ints({1}, x))});
    x = Op("ReduceSum", {x, Reshape(are_ones, Ints({-1}, x))},
           {{"keepdims", int64_t{1}}, {"noop_with_empty_axes", int64_t{1}}});
  }
  if (missing > 0) x = Reshape(x, b.input(1));
  b.SetOutput(0, x);
}

}  // namespace
}  // namespace gradient

namespace {

Status InferTopK(Graph& graph, Node* node) {
  const Value *x = node->input(0), *k = node->input(1);
  if (x == nullptr || k == nullptr || !x->type().is_tensor()) return {};
  const Tensor* count = graph.Initializer(k);
  for (int i = 0; i < static_cast<int>(node->outputs().size()); ++i) {
    if (node->output(i) == nullptr ||
        (node->output(i)->type().is_tensor() && node->output(i)->type().shape))
      continue;
    ValueType type = ValueType::Tensor(i == 0 ? x->dtype() : DType::kInt64);
    if (x->type().shape && count != nullptr && count->dtype() == DType::kInt64 &&
        count->shape().elements() == 1) {
      type.shape = x->type().shape;
      const int64_t rank = static_cast<int64_t>(type.shape->size()),
                    axis = node->Attr<int64_t>("axis", -1);
      if (axis < -rank || axis >= rank)
        return InvalidArgument(node->Label() + " has no axis " + std::to_string(axis));
      (*type.shape)[axis < 0 ? axis + rank : axis] = Dim{count->ToVector<int64_t>()[0], ""};
    }
    node->output(i)->set_type(std::move(type));
  }
  return {};
}

}  // namespace

// clang-format off
std::vector<OpDef> ReductionOps() {
  using Rows = OpDef::Rows;
  using Derivative = OpDef::Derivative;
  return {
    {.op_type = "ArgMax", .result = DType::kInt64, .derivative = Derivative::kZero},
    {.op_type = "ArgMin", .result = DType::kInt64, .derivative = Derivative::kZero},
    {.op_type = "CumProd", .rule = {.function = gradient::CumProdRule, .stops = {1}}},
    {.op_type = "CumSum", .rule = {.function = gradient::CumSumRule, .stops = {1}}},
    {.op_type = "ReduceL1", .rule = {.function = gradient::ReduceL1Rule, .stops = {1}}},
    {.op_type = "ReduceL2", .rows = Rows::kReduces,
     .rule = {.function = gradient::ReduceL2Rule, .stops = {1}}},
    {.op_type = "ReduceLogSum", .rule = {.function = gradient::ReduceLogSumRule, .stops = {1}}},
    {.op_type = "ReduceLogSumExp", .rule = {.function = gradient::ReduceLogSumExpRule, .stops = {1}}},
    {.op_type = "ReduceMax", .rows = Rows::kReduces,
     .rule = {.function = gradient::ReduceExtremumRule, .stops = {1}}, .derivative_note = "ties share"},
    {.op_type = "ReduceMean", .rows = Rows::kReduces,
     .rule = {.function = gradient::ReduceMeanRule, .stops = {1}}},
    {.op_type = "ReduceMin", .rows = Rows::kReduces,
     .rule = {.function = gradient::ReduceExtremumRule, .stops = {1}}, .derivative_note = "ties share"},
    {.op_type = "ReduceProd", .rule = {.function = gradient::ReduceProdRule, .stops = {1}}},
    {.op_type = "ReduceSum", .rows = Rows::kReduces,
     .rule = {.function = gradient::ReduceSumRule, .stops = {1}}},
    {.op_type = "ReduceSumSquare", .rows = Rows::kReduces,
     .rule = {.function = gradient::ReduceSumSquareRule, .stops = {1}}},
    {.op_type = "TopK", .rule = {.function = gradient::TopKRule, .stops = {1}}, .derivative_note = "values"},
    // TopK (X, K[host]) -> Y, I  as ONNX's, but of equal elements those that PyTorch takes; sorted: 0 leaves them as
    // found. as_sort: 1 gives the order of PyTorch's sort, K is then the whole axis
    {.op_type = "TopK", .domain = kCaesuraDomain, .min_inputs = 2, .max_inputs = 2, .max_outputs = 2,
     .infer = InferTopK, .rule = {.function = gradient::TopKRule, .stops = {1}}, .body = gradient::TopKBody},
    // LogCumSumExp (X) -> Y  Y_i = ln(e^X_1 + ... + e^X_i) along `axis` (default -1)
    {.op_type = "LogCumSumExp", .domain = kCaesuraDomain, .min_inputs = 1, .max_inputs = 1,
     .type_of_output = {0}, .rule = {.function = gradient::LogCumSumExpRule}, .body = gradient::LogCumSumExpBody},
    // LogCumSumExpGrad (dY, X, Y) -> dX  of LogCumSumExp
    {.op_type = "LogCumSumExpGrad", .domain = kCaesuraDomain, .min_inputs = 3, .max_inputs = 3,
     .type_of_output = {1}, .rule = {.function = gradient::LogCumSumExpGradRule, .stops = {2}},
     .body = gradient::LogCumSumExpGradBody},
    // CumProdGrad (dY, X, axis[host]) -> dX
    {.op_type = "CumProdGrad", .domain = kCaesuraDomain, .min_inputs = 3, .max_inputs = 3,
     .type_of_output = {1}, .rule = {.stops = {2}, .by_body = true},
     .body = gradient::CumProdGradBody},
    // ReduceProdGrad (dY, X, axes[host]?) -> dX
    {.op_type = "ReduceProdGrad", .domain = kCaesuraDomain, .min_inputs = 2, .max_inputs = 3,
     .type_of_output = {1}, .rule = {.stops = {2}, .by_body = true},
     .body = gradient::ReduceProdGradBody},
    // SumTo (dY, shape[host int64]) -> dX  sums dY over the axes that broadcasting expanded from `shape`; a view of dY
    // where nothing was expanded. Attribute dtype: float32, of a dX whose dY is of half (cast_propagation)
    {.op_type = "SumTo", .domain = kCaesuraDomain, .min_inputs = 2, .max_inputs = 2, .infer = ShapeOfInput<1>,
     .rows = Rows::kSums, .row_sums = {0}, .rule = {.function = gradient::SumToRule, .stops = {1}},
     .body = gradient::SumToBody},
  };
}
// clang-format on

}  // namespace caesura
