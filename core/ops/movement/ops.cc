// SPDX-License-Identifier: Apache-2.0
// The rows of movement of elements (core/graph/op_def.h), and their gradient rules.
#include <cmath>
#include <vector>

#include "core/gradient/gradient_rules.h"
#include "core/gradient/op_body.h"
#include "core/graph/op_def.h"
#include "core/ops/infer_types.h"

namespace caesura {
namespace gradient {
namespace {

// Y = X under another shape;  dX = dY under X's shape
void ReshapeRule(GradientContext& g) {
  if (g.Needs(0)) g.SetInputGradient(0, ReshapeLike(g.dY(), g.input(0)));
}

// Y = X broadcast to a shape;  dX = dY summed over what was broadcast (by the driver)
void ExpandRule(GradientContext& g) { g.SetInputGradient(0, g.dY()); }

// Y = X with axes permuted by p;  dX = dY with axes permuted by p^-1
void TransposeRule(GradientContext& g) {
  const auto p = g.Attr<std::vector<int64_t>>("perm", {});
  std::vector<int64_t> inverse(p.size());
  for (size_t i = 0; i < p.size(); ++i) inverse[p[i]] = static_cast<int64_t>(i);
  g.SetInputGradient(0, p.empty() ? Op("Transpose", {g.dY()}) : Transpose(g.dY(), inverse));
}

// Y = [X1, X2, ...];  [dX1, dX2, ...] = dY
void ConcatRule(GradientContext& g) {
  const int64_t axis = g.IntAttr("axis", 0);
  Exprs sizes;
  for (int i = 0; i < g.input_count(); ++i) sizes.push_back(DimOf(g.input(i), axis));
  const Exprs parts = Ops("Split", {g.dY(), Concat(sizes, 0)}, g.input_count(), {{"axis", axis}});
  for (int i = 0; i < g.input_count(); ++i) g.SetInputGradient(i, parts[i]);
}

// [Y1, Y2, ...] = X;  dX = [dY1, dY2, ...]
void SplitRule(GradientContext& g) {
  Exprs parts;
  for (int i = 0; i < g.output_count(); ++i) parts.push_back(g.dYOrZeros(i));
  g.SetInputGradient(0, Concat(parts, g.IntAttr("axis", 0)));
}

// Y = X[start:end:step];  dX = zeros with dX[start:end:step] = dY
void SliceRule(GradientContext& g) {
  const Expr x = g.input(0);
  g.SetInputGradient(0, TrainingOp("SliceGrad", {g.dY(), ShapeOf(x), g.input(1), g.input(2),
                                                 g.input(3), g.input(4)}));
}

// Y = X inside, value v (or a copy of X) around it;  dX = dY inside (plus the copies), dv = sum of
// dY around
void PadRule(GradientContext& g) {
  const Expr dx = TrainingOp("PadGrad", {g.dY(), ShapeOf(g.input(0)), g.input(1), g.input(3)},
                             g.Attributes({"mode"}));
  g.SetInputGradient(0, dx);
  if (g.Needs(2))
    g.SetInputGradient(
        2, ReshapeLike(ReduceSum(g.dY(), {}, false) - ReduceSum(dx, {}, false), g.input(2)));
}

// Y = X repeated r times along each axis;  dX = dY seen as [r1, d1, r2, d2, ...] summed over the r
void TileRule(GradientContext& g) {
  const int rank = g.Rank(0);
  const Expr x = g.input(0),
             pairs = Concat({Unsqueeze(g.input(1), {1}), Unsqueeze(ShapeOf(x), {1})}, 1);
  std::vector<int64_t> axes;
  for (int i = 0; i < rank; ++i) axes.push_back(2 * i);
  if (rank == 0) return g.SetInputGradient(0, g.dY());
  g.SetInputGradient(0,
                     ReduceSum(Reshape(g.dY(), Reshape(pairs, Ints({2 * rank}, x))), axes, false));
}

// Y = X on one side of a diagonal, else 0;  dX = dY on that side
void TriluRule(GradientContext& g) {
  g.SetInputGradient(0, Op("Trilu", {g.dY(), g.input(1)}, g.attributes()));
}

// Y = X with blocks moved to space;  dX = dY with space moved to blocks
void DepthToSpaceRule(GradientContext& g) {
  g.SetInputGradient(0, Op("SpaceToDepth", {g.dY()}, g.attributes()));
}
void SpaceToDepthRule(GradientContext& g) {
  g.SetInputGradient(0, Op("DepthToSpace", {g.dY()}, g.attributes()));
}

// Y = X with the head of each row reversed;  dX = dY reversed again
void ReverseSequenceRule(GradientContext& g) {
  g.SetInputGradient(0, Op("ReverseSequence", {g.dY(), g.input(1)}, g.attributes()));
}

// D = zeros with dY in a slice;  ddY = the slice of G
void SliceGradRule(GradientContext& g) {
  g.SetInputGradient(0, Op("Slice", {g.dY(), g.input(2), g.input(3), g.input(4), g.input(5)}));
}

// D = the inside of dY, plus copies;  ddY = G padded in the same way
void PadGradRule(GradientContext& g) {
  g.SetInputGradient(0, Op("Pad", {g.dY(), g.input(2), Expr(), g.input(3)}, g.attributes()));
}

// --- bodies ---

Expr CountOf(Expr shape) { return Op("ReduceProd", {shape}, {{"keepdims", int64_t{0}}}); }

// The number of each element of a tensor of this shape, in its place.
Expr Places(Expr shape) {
  const Expr count = CountOf(shape);
  return Reshape(Op("Range", {Int(0, count), count, Int(1, count)}), shape);
}

// Zeros of the shape, with each element of dY added at its place among them; `count` is past the
// last place, and goes nowhere.
Expr AddedAt(Expr dy, Expr places, Expr shape) {
  const Expr one_more = Unsqueeze(CountOf(shape) + Int(1, shape), {0}), row = Ints({-1}, shape);
  const Expr sums =
      Op("ScatterElements", {Filled(0, one_more, dy), Reshape(places, row), Reshape(dy, row)},
         {{"axis", int64_t{0}}, {"reduction", std::string("add")}});
  return Reshape(Slice(sums, Ints({0}, shape), Ints({-1}, shape), 0), shape);
}

void SliceGradBody(OpBody& b) {
  Exprs slice = {Places(b.input(1))};
  for (int i = 2; i < b.input_count(); ++i) slice.push_back(b.input(i));
  b.SetOutput(0, AddedAt(b.input(0), Op("Slice", slice), b.input(1)));
}

void PadGradBody(OpBody& b) {
  const Expr shape = b.input(1), places = Places(shape);
  const bool is_constant = b.Attr<std::string>("mode", "constant") == "constant";
  Exprs pad = {places, b.input(2), is_constant ? CountOf(shape) : Expr(), b.input(3)};
  b.SetOutput(0, AddedAt(b.input(0), Op("Pad", pad, b.attributes()), shape));
}

}  // namespace
}  // namespace gradient

// clang-format off
std::vector<OpDef> MovementOps() {
  using View = OpDef::View;
  using Rows = OpDef::Rows;
  using Derivative = OpDef::Derivative;
  constexpr int kAll = OpDef::kAll;
  return {
    {.op_type = "CenterCropPad", .derivative = Derivative::kBody,
     .derivative_note = "function body: Slice and Pad"},
    {.op_type = "Concat", .rows = Rows::kAlongAxis, .half_inputs = kAll,
     .rule = {.function = gradient::ConcatRule}},
    {.op_type = "DepthToSpace", .half_inputs = 1, .rule = {.function = gradient::DepthToSpaceRule}},
    {.op_type = "Expand", .half_inputs = 1,
     .rule = {.function = gradient::ExpandRule, .broadcasts = true, .stops = {1}}},
    {.op_type = "EyeLike", .derivative = Derivative::kZero, .derivative_note = "the shape only: zero"},
    {.op_type = "Flatten", .view = View::kReshape, .half_inputs = 1,
     .rule = {.function = gradient::ReshapeRule}},
    {.op_type = "NonZero", .result = DType::kInt64, .derivative = Derivative::kZero},
    {.op_type = "Pad", .rule = {.function = gradient::PadRule, .stops = {1, 3}},
     .derivative_note = "value too"},
    {.op_type = "Reshape", .view = View::kReshape, .half_inputs = 1,
     .rule = {.function = gradient::ReshapeRule, .stops = {1}}},
    {.op_type = "ReverseSequence", .rule = {.function = gradient::ReverseSequenceRule, .stops = {1}}},
    {.op_type = "Shape", .result = DType::kInt64, .derivative = Derivative::kZero},
    {.op_type = "Size", .result = DType::kInt64, .derivative = Derivative::kZero},
    {.op_type = "Slice", .half_inputs = 1, .rule = {.function = gradient::SliceRule, .stops = {-2}}},
    {.op_type = "SpaceToDepth", .half_inputs = 1, .rule = {.function = gradient::SpaceToDepthRule}},
    {.op_type = "Split", .rows = Rows::kAlongAxis, .row_axis = 0, .half_inputs = 1,
     .rule = {.function = gradient::SplitRule, .stops = {1}}},
    {.op_type = "Squeeze", .view = View::kReshape, .half_inputs = 1,
     .rule = {.function = gradient::ReshapeRule, .stops = {1}}},
    {.op_type = "Tile", .half_inputs = 1, .rule = {.function = gradient::TileRule, .stops = {1}}},
    {.op_type = "Transpose", .view = View::kPermutation, .half_inputs = 1,
     .rule = {.function = gradient::TransposeRule}},
    {.op_type = "Trilu", .rule = {.function = gradient::TriluRule, .stops = {1}}},
    {.op_type = "Unique", .derivative = Derivative::kRefusal,
     .derivative_note = "which elements are equal decides the shape: not differentiable, as in PyTorch"},
    {.op_type = "Unsqueeze", .view = View::kReshape, .half_inputs = 1,
     .rule = {.function = gradient::ReshapeRule, .stops = {1}}},
    // SliceGrad (dY, shape[host], starts[host], ends[host], axes[host]?, steps[host]?) -> dX: zeros of `shape` with dY
    // in the slice
    {.op_type = "SliceGrad", .domain = kCaesuraDomain, .min_inputs = 4, .max_inputs = 6,
     .infer = ShapeOfInput<1>, .rule = {.function = gradient::SliceGradRule, .stops = {-2}},
     .body = gradient::SliceGradBody},
    // PadGrad (dY, shape[host] of X, pads[host], axes[host]?) -> dX  attribute mode: constant | reflect | edge | wrap
    {.op_type = "PadGrad", .domain = kCaesuraDomain, .min_inputs = 3, .max_inputs = 4,
     .infer = ShapeOfInput<1>, .rule = {.function = gradient::PadGradRule, .stops = {-2}},
     .body = gradient::PadGradBody},
    {.op_type = "Constant", .derivative = Derivative::kZero},
    {.op_type = "ConstantOfShape", .derivative = Derivative::kZero},
  };
}
// clang-format on

}  // namespace caesura
