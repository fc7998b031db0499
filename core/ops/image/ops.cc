// SPDX-License-Identifier: Apache-2.0
// The rows of resampling and regions (core/graph/op_def.h), and their gradient rules.
#include <vector>

#include "core/gradient/gradient_rules.h"
#include "core/graph/op_def.h"
#include "core/ops/op_bodies.h"
#include "core/ops/infer_types.h"

namespace caesura {
namespace gradient {
namespace {

// Y = X interpolated at other places;  dX = dY spread with the same weights
void ResizeRule(GradientContext& g) {
  const Exprs inputs = {g.dY(), ShapeOf(g.input(0)), g.input(1), g.input(2), g.input(3)};
  g.SetInputGradient(0, TrainingOp("ResizeGrad", inputs, g.attributes()));
}

// Y = X interpolated at the points of a grid;  dX = dY spread, dgrid = dY times the slope of X
void GridSampleRule(GradientContext& g) {
  g.SetInputGradients("GridSampleGrad", {g.dY(), g.input(0), g.input(1)}, {0, 1}, g.attributes());
}

// Y = theta [P 1] at each point P of a grid;  dtheta = sum over points of dY [P 1]'.  Under the
// identity Y is P itself.
void AffineGridRule(GradientContext& g) {
  const Expr theta = g.input(0), batch = DimOf(theta, 0), rank = DimOf(theta, 1),
             one = Ints({1}, theta);
  const Expr identity =
      Expand(Op("EyeLike", {Filled(0, ShapeOf(theta, 1), theta)}), ShapeOf(theta));
  const Expr grid = Op("AffineGrid", {identity, g.input(1)}, g.attributes());
  const Expr points = Op("ReduceProd", {ShapeOf(grid, 1, -1), Ints({0}, theta)});
  const Expr flat = Concat({batch, points, rank}, 0);
  const Expr ones = Filled(1, Concat({batch, points, one}, 0), theta);
  const Expr places = Concat({Reshape(grid, flat), ones}, 2);
  g.SetInputGradient(0, Op("MatMul", {Transpose(Reshape(g.dY(), flat), {0, 2, 1}), places}));
}

// Y = mean (or max) of X over the cells of a region;  dX = dY spread over them
void RoiAlignRule(GradientContext& g) {
  g.SetInputGradient(
      0, TrainingOp("RoiAlignGrad", {g.dY(), g.input(0), g.input(1), g.input(2)}, g.attributes()));
}
void MaxRoiPoolRule(GradientContext& g) {
  g.SetInputGradient(
      0, TrainingOp("MaxRoiPoolGrad", {g.dY(), g.input(0), g.input(1)}, g.attributes()));
}

// D = dY spread with the weights of an interpolation;  ddY = G interpolated
void ResizeGradRule(GradientContext& g) {
  AttributeMap attributes = g.attributes();
  attributes.erase("extrapolation_value");  // it adds to Y what does not depend on X
  g.SetInputGradient(0, Op("Resize", {g.dY(), g.input(2), g.input(3), g.input(4)}, attributes));
}

// D = dY spread over the cells of a region;  ddY = means of G over them
void RoiAlignGradRule(GradientContext& g) {
  if (g.Attr<std::string>("mode", "avg") != "avg") return g.Refuse(kNoSecondDerivative);
  g.SetInputGradient(0, Op("RoiAlign", {g.dY(), g.input(2), g.input(3)}, g.attributes()));
}

// The spatial size that MaxUnpool's attributes imply: (in - 1) stride - pads + kernel.
Expr UnpooledSize(const GradientContext& g) {
  const auto kernel = g.Attr<std::vector<int64_t>>("kernel_shape", {});
  const size_t axes = kernel.size();
  const auto strides = g.Attr<std::vector<int64_t>>("strides", std::vector<int64_t>(axes, 1));
  const auto pads = g.Attr<std::vector<int64_t>>("pads", std::vector<int64_t>(2 * axes, 0));
  std::vector<int64_t> offset;
  for (size_t i = 0; i < axes; ++i)
    offset.push_back(kernel[i] - strides[i] - pads[i] - pads[axes + i]);
  const Expr x = g.input(0);
  return ShapeOf(x, 2) * Ints(strides, x) + Ints(offset, x);
}

// Y = zeros with X at flat indices I;  dX = dY at I
void MaxUnpoolRule(GradientContext& g) {
  Expr dy = g.dY();
  const Expr flat = Ints({-1}, dy);
  if (g.HasInput(
          2)) {  // the indices count in the implied size, which lies in a corner of the stated one
    std::vector<int64_t> axes, zeros;
    for (int i = 2; i < g.Rank(0); ++i) {
      axes.push_back(i);
      zeros.push_back(0);
    }
    dy = Op("Slice", {dy, Ints(zeros, dy), UnpooledSize(g), Ints(axes, dy)});
  }
  const Expr picked = Gather(Op("Reshape", {dy, flat}), Op("Reshape", {g.input(1), flat}), 0);
  g.SetInputGradient(0, ReshapeLike(picked, g.input(0)));
}

// Y = columns of X added up where blocks overlap;  dX = blocks of dY as columns: a convolution with
// an identity
void Col2ImRule(GradientContext& g) {
  const Expr x = g.input(0), block = g.input(2), one = Ints({1}, x);
  const Expr k = Op("ReduceProd", {block, Ints({0}, x)});
  const Expr eye = Op("EyeLike", {Filled(0, Concat({k, k}, 0), x)});
  const Expr planes = Reshape(g.dY(), Concat({Ints({-1, 1}, x), ShapeOf(g.dY(), 2)}, 0));
  const Expr kernel = Reshape(eye, Concat({k, one, block}, 0));
  const Expr columns = Op("Conv", {planes, kernel}, g.Attributes({"dilations", "pads", "strides"}));
  g.SetInputGradient(0, ReshapeLike(columns, x));
}

}  // namespace
}  // namespace gradient

// clang-format off
std::vector<OpDef> ImageOps() {
  using Derivative = OpDef::Derivative;
  return {
    {.op_type = "Col2Im", .rule = {.function = gradient::Col2ImRule, .stops = {1, 2}}},
    {.op_type = "AffineGrid", .rule = {.function = gradient::AffineGridRule, .stops = {1}},
     .derivative_note = "theta"},
    {.op_type = "GridSample", .rule = {.function = gradient::GridSampleRule},
     .derivative_note = "X and grid"},
    {.op_type = "MaxRoiPool", .rule = {.function = gradient::MaxRoiPoolRule, .refuses = {1}},
     .derivative_note = "by X; regions are refused"},
    {.op_type = "Resize", .rule = {.function = gradient::ResizeRule, .stops = {3}, .refuses = {1, 2}},
     .derivative_note = "by X; roi and scales as values are refused"},
    {.op_type = "RoiAlign", .rule = {.function = gradient::RoiAlignRule, .stops = {2}, .refuses = {1}},
     .derivative_note = "by X; regions are refused"},
    // MaxRoiPoolGrad (dY, X, rois) -> dX
    {.op_type = "MaxRoiPoolGrad", .domain = kCaesuraDomain, .min_inputs = 3, .max_inputs = 3,
     .type_of_output = {1}, .rule = {.stops = {1}, .refuses = {2}, .by_body = true},
     .derivative_note = "by dY; regions are refused", .body = gradient::MaxRoiPoolGradBody},
    // RoiAlignGrad (dY, X, rois, batch_indices) -> dX
    {.op_type = "RoiAlignGrad", .domain = kCaesuraDomain, .min_inputs = 4, .max_inputs = 4,
     .type_of_output = {1}, .rule = {.function = gradient::RoiAlignGradRule, .stops = {1, 3}, .refuses = {2}},
     .derivative_note = "mode avg; of maxima there is none", .body = gradient::RoiAlignGradBody},
    // GridSampleGrad (dY, X, grid) -> dX, dgrid
    {.op_type = "GridSampleGrad", .domain = kCaesuraDomain, .min_inputs = 3, .max_inputs = 3,
     .max_outputs = 2, .type_of_output = {1, 2}, .rule = {.by_body = true},
     .body = gradient::GridSampleGradBody},
    // ResizeGrad (dY, shape[host] of X, roi[host]?, scales[host]?, sizes[host]?) -> dX
    {.op_type = "ResizeGrad", .domain = kCaesuraDomain, .min_inputs = 2, .max_inputs = 5,
     .infer = ShapeOfInput<1>,
     .rule = {.function = gradient::ResizeGradRule, .stops = {1, 4}, .refuses = {2, 3}},
     .body = gradient::ResizeGradBody},
    {.op_type = "MaxUnpool", .rule = {.function = gradient::MaxUnpoolRule, .stops = {1, 2}}},
    {.op_type = "NonMaxSuppression", .derivative = Derivative::kZero},
  };
}
// clang-format on

}  // namespace caesura
