// SPDX-License-Identifier: Apache-2.0
// The rows of pooling (core/graph/op_def.h), and their gradient rules.
#include <cmath>
#include <utility>
#include <vector>

#include "core/gradient/gradient_rules.h"
#include "core/graph/op_def.h"
#include "core/ops/op_bodies.h"

namespace caesura {
namespace gradient {
namespace {

// Y = max of a window;  dX = dY at the first maximum
void MaxPoolRule(GradientContext& g) {
  g.SetInputGradient(0, TrainingOp("MaxPoolGrad", {g.dY(), g.input(0)}, g.attributes()));
}

// Y = mean of a window;  dX = dY / n all over the window
void AveragePoolRule(GradientContext& g) {
  g.SetInputGradient(0, TrainingOp("AveragePoolGrad", {g.dY(), g.input(0)}, g.attributes()));
}

// Y = (sum of |X|^p of a window)^(1/p);  dX = dY sign X |X|^(p-1) Y^(1-p)
void LpPoolRule(GradientContext& g) {
  g.SetInputGradient(0, TrainingOp("LpPoolGrad", {g.dY(), g.input(0), g.output()}, g.attributes()));
}

// Y = mean over all positions;  dX = dY / n everywhere
void GlobalAveragePoolRule(GradientContext& g) {
  const DType wide = g.dY().dtype() == DType::kFloat64 ? DType::kFloat64 : DType::kFloat32;
  const Expr count = Op("ReduceProd", {ShapeOf(g.input(0), 2)}, {{"keepdims", int64_t{0}}});
  const Expr share = g.dY() * Cast(Reciprocal(Cast(count, wide)), g.dY().dtype());
  g.SetInputGradient(0, Expand(share, ShapeOf(g.input(0))));
}

// Y = max over all positions;  dX = dY at the first maximum
void GlobalMaxPoolRule(GradientContext& g) {
  g.SetInputGradient(0, TrainingOp("GlobalMaxPoolGrad", {g.dY(), g.input(0)}));
}

// Y = (sum of |X|^p)^(1/p) over all positions;  dX = dY sign X (|X| / Y)^(p-1), 0 where Y = 0
void GlobalLpPoolRule(GradientContext& g) {
  const int64_t p = g.IntAttr("p", 2);
  const Expr x = g.input(0), y = g.output(), zero = Number(0, x);
  if (p == 1) return g.SetInputGradient(0, g.dY() * Sign(x));
  const Expr ratio = Abs(x) / Where(Equal(y, zero), Number(1, x), y);
  g.SetInputGradient(0,
                     g.dY() * Sign(x) * (p == 2 ? ratio : Pow(ratio, static_cast<double>(p - 1))));
}

// D = dY / n over each window;  ddY = means of G over the windows
void AveragePoolGradRule(GradientContext& g) {
  g.SetInputGradient(0, Op("AveragePool", {g.dY()}, g.attributes()));
}

// D = dY at the maximum of each window;  ddY = G there
void MaxPoolGradRule(GradientContext& g) {
  AttributeMap attributes = g.attributes();
  attributes.erase("storage_order");  // of the indices, which count in row-major order here
  const Expr indices = Ops("MaxPool", {g.input(1)}, 2, std::move(attributes))[1];
  indices.value()->set_type(ValueType::Tensor(DType::kInt64));
  g.SetInputGradient(0, Gather(Reshape(g.dY(), Ints({-1}, g.dY())), indices, 0));
}

// D = dY at the maximum of all positions;  ddY = G there
void GlobalMaxPoolGradRule(GradientContext& g) {
  std::vector<int64_t> axes;
  for (int i = 2; i < g.Rank(1); ++i) axes.push_back(i);
  const Expr mask = TrainingOp("GlobalMaxPoolGrad", {OnesLike(g.input(0)), g.input(1)});
  g.SetInputGradient(0, axes.empty() ? g.dY() * mask : ReduceSum(g.dY() * mask, axes, true));
}

// D = f(X) times the sums of c over the windows that X is in, with c = dY Y^(1-p), f(x) = sign x
// |x|^(p-1);  with S = sums of G f(X) over each window: ddY = S Y^(1-p), dX = G f'(X) times the
// sums of c, dY' = (1-p) S dY Y^-p
void LpPoolGradRule(GradientContext& g) {
  const int64_t p = g.IntAttr("p", 2);
  const Expr G = g.dY(), dy = g.input(0), x = g.input(1), y = g.input(2), zero = Number(0, x);
  AttributeMap sums = g.attributes();  // LpPool with p = 1 sums what is not negative
  sums["p"] = int64_t{1};
  const Expr v = G * Sign(x) * Pow(Abs(x), static_cast<double>(p - 1));
  const Expr s = Op("LpPool", {Op("Relu", {v})}, sums) - Op("LpPool", {Op("Relu", {-v})}, sums);
  const Expr nothing = Equal(y, zero);
  const auto to = [&](int64_t power) {
    return Where(nothing, zero, Pow(Where(nothing, Number(1, y), y), static_cast<double>(power)));
  };
  g.SetInputGradient(0, s * to(1 - p));
  if (p == 1) return;
  const Expr ones = OnesLike(x);
  const Expr spread = TrainingOp("LpPoolGrad", {dy * to(1 - p), ones, OnesLike(y)}, sums);
  const Expr slope =
      p == 2 ? ones : Pow(Abs(x), static_cast<double>(p - 2)) * static_cast<double>(p - 1);
  g.SetInputGradient(1, G * slope * spread);
  g.SetInputGradient(2, s * dy * to(-p) * static_cast<double>(1 - p));
}

}  // namespace
}  // namespace gradient

// clang-format off
std::vector<OpDef> PoolOps() {
  return {
    {.op_type = "AveragePool", .half_inputs = 1, .rule = {.function = gradient::AveragePoolRule}},
    {.op_type = "GlobalAveragePool", .rule = {.function = gradient::GlobalAveragePoolRule}},
    {.op_type = "GlobalLpPool", .rule = {.function = gradient::GlobalLpPoolRule}},
    {.op_type = "GlobalMaxPool", .rule = {.function = gradient::GlobalMaxPoolRule},
     .derivative_note = "the first maximum takes it"},
    {.op_type = "LpPool", .rule = {.function = gradient::LpPoolRule}},
    {.op_type = "MaxPool", .half_inputs = 1, .rule = {.function = gradient::MaxPoolRule},
     .derivative_note = "the first maximum takes it"},
    // MaxPoolGrad (dY, X) -> dX  first maximum of a window in row-major order takes the gradient
    {.op_type = "MaxPoolGrad", .domain = kCaesuraDomain, .min_inputs = 2, .max_inputs = 2,
     .type_of_output = {1}, .rule = {.function = gradient::MaxPoolGradRule, .stops = {1}},
     .body = gradient::MaxPoolGradBody},
    // AveragePoolGrad (dY, X) -> dX
    {.op_type = "AveragePoolGrad", .domain = kCaesuraDomain, .min_inputs = 2, .max_inputs = 2,
     .type_of_output = {1}, .rule = {.function = gradient::AveragePoolGradRule, .stops = {1}},
     .body = gradient::AveragePoolGradBody},
    // LpPoolGrad (dY, X, Y) -> dX
    {.op_type = "LpPoolGrad", .domain = kCaesuraDomain, .min_inputs = 3, .max_inputs = 3,
     .type_of_output = {1}, .rule = {.function = gradient::LpPoolGradRule},
     .body = gradient::LpPoolGradBody},
    // GlobalMaxPoolGrad (dY, X) -> dX  ties: the first one (PyTorch: amax shares; adaptive_max_pool takes one)
    {.op_type = "GlobalMaxPoolGrad", .domain = kCaesuraDomain, .min_inputs = 2, .max_inputs = 2,
     .type_of_output = {1}, .rule = {.function = gradient::GlobalMaxPoolGradRule, .stops = {1}},
     .body = gradient::GlobalMaxPoolGradBody},
  };
}
// clang-format on

}  // namespace caesura
