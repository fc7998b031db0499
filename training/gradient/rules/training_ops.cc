// SPDX-License-Identifier: Apache-2.0
// Gradients of gradients: rules of the ops that gradient rules emit. G is the gradient of the op's
// result.
#include <cmath>

#include "training/gradient/gradient_rules.h"
#include "training/kernels/training_ops.h"

namespace caesura::gradient {
namespace {

// D = dY summed to a shape;  ddY = G broadcast back
void SumToRule(GradientContext& g) { g.SetInputGradient(0, Expand(g.dY(), ShapeOf(g.input(0)))); }

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

// D = dY gelu'(X);  ddY = G gelu'(X), dX = G dY phi(X) (2 - X^2)
void GeluGradRule(GradientContext& g) {
  g.SetInputGradient(0, TrainingOp("GeluGrad", {g.dY(), g.input(1)}, g.attributes()));
  if (!g.Needs(1)) return;
  if (g.Attr<std::string>("approximate", "none") != "none")
    return g.Refuse("has no second derivative in its tanh form");
  const Expr x = g.input(1), phi = Exp(Square(x) * -0.5) / std::sqrt(2 * M_PI);
  g.SetInputGradient(1, g.dY() * g.input(0) * phi * (2 - Square(x)));
}

// D = Y (dY - s), s = sum of dY Y;  ddY = the same of G, dY' = G (dY - s) - dY (sum of G Y)
void SoftmaxGradRule(GradientContext& g) {
  const int64_t axis = g.IntAttr("axis", -1);
  const Expr G = g.dY(), dy = g.input(0), y = g.input(1);
  g.SetInputGradient(0, TrainingOp("SoftmaxGrad", {G, y}, {{"axis", axis}}));
  g.SetInputGradient(
      1, G * (dy - ReduceSum(dy * y, {axis}, true)) - dy * ReduceSum(G * y, {axis}, true));
}

// D = dY - e^Y s, s = sum of dY;  ddY = G - sum of G e^Y, dY' = -G e^Y s
void LogSoftmaxGradRule(GradientContext& g) {
  const int64_t axis = g.IntAttr("axis", -1);
  const Expr weighed = g.dY() * Exp(g.input(1));
  g.SetInputGradient(0, g.dY() - ReduceSum(weighed, {axis}, true));
  g.SetInputGradient(1, -(weighed * ReduceSum(g.input(0), {axis}, true)));
}

// D = dY mask / (1 - ratio);  ddY = G mask / (1 - ratio)
void DropoutGradRule(GradientContext& g) {
  g.SetInputGradient(0, TrainingOp("DropoutGrad", {g.dY(), g.input(1), g.input(2)}));
}

// D = base (or zeros) with dY added at indices;  ddY = G at the indices, dbase = G
void GatherGradRule(GradientContext& g) {
  g.SetInputGradient(0, Gather(g.dY(), g.input(1), g.IntAttr("axis", 0)));
  g.SetInputGradient(3, g.dY());
}

// D = zeros with dY in a slice;  ddY = the slice of G
void SliceGradRule(GradientContext& g) {
  g.SetInputGradient(0, Op("Slice", {g.dY(), g.input(2), g.input(3), g.input(4), g.input(5)}));
}

// D = the inside of dY, plus copies;  ddY = G padded in the same way
void PadGradRule(GradientContext& g) {
  g.SetInputGradient(0, Op("Pad", {g.dY(), g.input(2), Expr(), g.input(3)}, g.attributes()));
}

// D = dY / n over each window;  ddY = means of G over the windows
void AveragePoolGradRule(GradientContext& g) {
  g.SetInputGradient(0, Op("AveragePool", {g.dY()}, g.attributes()));
}

Expr SumOfPresent(Expr a, Expr b) { return a && b ? a + b : a ? a : b; }

// [DX, DW, DB] is linear in dY, in X and in W, and <GX, DX> = <dY, GX * W>, <GW, DW> = <dY, X *
// GW>, so ddY = GX * W + X * GW + GB, dX = DX of (dY, GW), dW = DW of (dY, GX)
void ConvGradRule(GradientContext& g) {
  const Expr dy = g.input(0), x = g.input(1), w = g.input(2), gx = g.dY(0), gw = g.dY(1),
             gb = g.dY(2);
  const AttributeMap& attributes = g.attributes();
  if (g.Needs(0)) {
    Expr ddy = SumOfPresent(gx ? Op("Conv", {gx, w}, attributes) : Expr(),
                            gw ? Op("Conv", {x, gw}, attributes) : Expr());
    if (gb) {
      std::vector<int64_t> channel(std::max(g.Rank(0) - 1, 1), 1);
      channel[0] = -1;
      const Expr bias = Reshape(gb, Ints(channel, gb));
      ddy = ddy ? ddy + bias : Expand(bias, ShapeOf(dy));
    }
    g.SetInputGradient(0, ddy);
  }
  if (gw) g.SetInputGradients("ConvGrad", {dy, x, gw}, {1}, attributes);
  if (gx) g.SetInputGradients("ConvGrad", {dy, gx, w}, {-1, 2}, attributes);
}

// A yield that takes back what it hands out passes gradients through
void YieldRule(GradientContext& g) {
  if (g.IntAttr("identity", 0) == 0)
    return g.Refuse("hands values out and takes gradients in: it cannot be differentiated");
  for (int i = 0; i < g.input_count(); ++i) g.SetInputGradient(i, g.dY(i));
}

}  // namespace

std::vector<GradientRule> TrainingOpRules() {
  return {
      {.op_type = "AveragePoolGrad",
       .function = AveragePoolGradRule,
       .domain = kTrainingDomain,
       .stops = {1}},
      {.op_type = "ConvGrad", .function = ConvGradRule, .domain = kTrainingDomain},
      {.op_type = "DropoutGrad",
       .function = DropoutGradRule,
       .domain = kTrainingDomain,
       .stops = {1, 2}},
      {.op_type = "GatherGrad",
       .function = GatherGradRule,
       .domain = kTrainingDomain,
       .stops = {1, 2}},
      {.op_type = "GeluGrad", .function = GeluGradRule, .domain = kTrainingDomain},
      {.op_type = "LogSoftmaxGrad", .function = LogSoftmaxGradRule, .domain = kTrainingDomain},
      {.op_type = "PadGrad", .function = PadGradRule, .domain = kTrainingDomain, .stops = {-2}},
      {.op_type = "ReluGrad", .function = ReluGradRule, .domain = kTrainingDomain, .stops = {1}},
      {.op_type = "SigmoidGrad", .function = SigmoidGradRule, .domain = kTrainingDomain},
      {.op_type = "SliceGrad", .function = SliceGradRule, .domain = kTrainingDomain, .stops = {-2}},
      {.op_type = "SoftmaxGrad", .function = SoftmaxGradRule, .domain = kTrainingDomain},
      {.op_type = "SumTo", .function = SumToRule, .domain = kTrainingDomain, .stops = {1}},
      {.op_type = "TanhGrad", .function = TanhGradRule, .domain = kTrainingDomain},
      {.op_type = "YieldOp", .function = YieldRule, .domain = kTrainingDomain},
  };
}

}  // namespace caesura::gradient
