// SPDX-License-Identifier: Apache-2.0
// The rows of convolutions (core/graph/op_def.h), and their gradient rules.
#include <cmath>
#include <vector>

#include "core/gradient/gradient_rules.h"
#include "core/graph/op_def.h"
#include "core/ops/op_bodies.h"

namespace caesura {
namespace gradient {
namespace {

// Y = X * W + B;  dX = dY correlated with W, dW = X correlated with dY, dB = sum of dY
void ConvRule(GradientContext& g) {
  g.SetInputGradients("ConvGrad", {g.dY(), g.input(0), g.input(1)}, {0, 1, 2}, g.attributes());
}
void ConvTransposeRule(GradientContext& g) {
  g.SetInputGradients("ConvTransposeGrad", {g.dY(), g.input(0), g.input(1)}, {0, 1, 2},
                      g.attributes());
}

// As Conv, with X read at offsets and weighed by a mask
void DeformConvRule(GradientContext& g) {
  const Exprs inputs = {g.dY(), g.input(0), g.input(1), g.input(2), g.input(3), g.input(4)};
  g.SetInputGradients("DeformConvGrad", inputs, {0, 1, 2, 3, 4}, g.attributes());
}

Expr SumOfPresent(Expr a, Expr b) { return a && b ? a + b : a ? a : b; }

// [DX, DW, DB] is linear in dY, in X and in W, and <GX, DX> = <dY, GX * W>, <GW, DW> = <dY, X *
// GW>, so ddY = GX * W + X * GW + GB, dX = DX of (dY, GW), dW = DW of (dY, GX)
void BilinearGradRule(GradientContext& g, const std::string& op) {
  const Expr dy = g.input(0), x = g.input(1), w = g.input(2), gx = g.dY(0), gw = g.dY(1),
             gb = g.dY(2);
  const AttributeMap& attributes = g.attributes();
  if (g.Needs(0)) {
    Expr ddy = SumOfPresent(gx ? Op(op, {gx, w}, attributes) : Expr(),
                            gw ? Op(op, {x, gw}, attributes) : Expr());
    if (gb) {
      std::vector<int64_t> channel(std::max(g.Rank(0) - 1, 1), 1);
      channel[0] = -1;
      const Expr bias = Reshape(gb, Ints(channel, gb));
      ddy = ddy ? ddy + bias : Expand(bias, ShapeOf(dy));
    }
    g.SetInputGradient(0, ddy);
  }
  if (gw) g.SetInputGradients(op + "Grad", {dy, x, gw}, {1}, attributes);
  if (gx) g.SetInputGradients(op + "Grad", {dy, gx, w}, {-1, 2}, attributes);
}
void ConvGradRule(GradientContext& g) { BilinearGradRule(g, "Conv"); }
void ConvTransposeGradRule(GradientContext& g) { BilinearGradRule(g, "ConvTranspose"); }

}  // namespace
}  // namespace gradient

// clang-format off
std::vector<OpDef> ConvOps() {
  using Work = OpDef::Work;
  using Derivative = OpDef::Derivative;
  constexpr int kAll = OpDef::kAll;
  return {
    {.op_type = "CausalConvWithState", .derivative = Derivative::kBody,
     .derivative_note = "function body: Concat, Conv, Slice"},
    {.op_type = "Conv", .computes_in_half = true, .half_inputs = kAll, .work = Work::kConvolution,
     .rule = {.function = gradient::ConvRule}},
    {.op_type = "ConvTranspose", .computes_in_half = true, .half_inputs = kAll,
     .rule = {.function = gradient::ConvTransposeRule}},
    {.op_type = "DeformConv", .rule = {.function = gradient::DeformConvRule}},
    // ConvGrad (dY, X, W) -> dX, dW, dB
    {.op_type = "ConvGrad", .domain = kCaesuraDomain, .min_inputs = 3, .max_inputs = 3, .max_outputs = 3,
     .type_of_output = {1, 2, -1}, .rule = {.function = gradient::ConvGradRule}, .body = gradient::ConvGradBody},
    // ConvTransposeGrad (dY, X, W) -> dX, dW, dB
    {.op_type = "ConvTransposeGrad", .domain = kCaesuraDomain, .min_inputs = 3, .max_inputs = 3,
     .max_outputs = 3, .type_of_output = {1, 2, -1}, .rule = {.function = gradient::ConvTransposeGradRule},
     .body = gradient::ConvTransposeGradBody},
    // DeformConvGrad (dY, X, W, offset, B?, mask?) -> dX, dW, doffset, dB, dmask
    {.op_type = "DeformConvGrad", .domain = kCaesuraDomain, .min_inputs = 4, .max_inputs = 6,
     .max_outputs = 5, .type_of_output = {1, 2, 3, 4, 5}, .rule = {.stops = {4}, .by_body = true},
     .body = gradient::DeformConvGradBody},
  };
}
// clang-format on

}  // namespace caesura
