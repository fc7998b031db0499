// SPDX-License-Identifier: Apache-2.0
// The rows of transforms of signals (core/graph/op_def.h), and their gradient rules.
#include <vector>

#include "core/gradient/gradient_rules.h"
#include "core/graph/op_def.h"

namespace caesura {
namespace gradient {
namespace {

// A transform of length n (rank 1, one element) along an axis, without the 1/n that the inverse one
// has.
Expr Transform(Expr v, Expr n, int64_t axis, bool inverse, bool onesided) {
  const AttributeMap attributes = {{"inverse", int64_t{inverse}}, {"onesided", int64_t{onesided}}};
  const Expr y = Op("DFT", {v, Squeeze(n, {0}), Int(axis, v)}, attributes);
  return inverse ? y * Cast(n, v.dtype()) : y;
}

// v cut or filled with zeros to n elements along an axis.
Expr Fitted(Expr v, Expr n, int64_t axis) {
  const Expr longer = Op("Pad", {v, Concat({Ints({0}, v), n}, 0), Expr(), Ints({axis}, v)});
  return Slice(longer, Ints({0}, v), n, axis);
}

// For a real X: the real part.
Expr PartsOf(Expr x, Expr v) { return Slice(v, Ints({0}, v), DimOf(x, -1), -1); }

// 1, 2, 2, ..., and 1 for the middle of an even length: how often the inverse transform of one side
// uses each entry.
Expr SideWeights(Expr like, Expr n, int64_t axis, int rank) {
  const Expr k = Op("Range", {Int(0, n), Squeeze(DimOf(like, axis), {0}), Int(1, n)});
  const Expr mirrored = And(Greater(k, Int(0, n)), Less(k * Int(2, n), n));
  std::vector<int64_t> along(rank, 1);
  along[axis < 0 ? axis + rank : axis] = -1;
  return Reshape(Mask(mirrored, like) + 1, Ints(along, n));
}

// y = F x;  dx = F^H dy, cut to x's length and, for a real x, to its real part
void DftRule(GradientContext& g) {
  const Tensor* stated = g.ConstantInput(2);
  const bool has_axis = stated != nullptr && stated->elements() == 1 &&
                        (stated->dtype() == DType::kInt64 || stated->dtype() == DType::kInt32);
  if (g.HasInput(2) && !has_axis) return g.Refuse("has an axis that is no constant integer");
  const int64_t axis = stated == nullptr ? -2 : stated->ToVector<int64_t>()[0];
  const bool inverse = g.IntAttr("inverse", 0) != 0, onesided = g.IntAttr("onesided", 0) != 0;
  const Expr x = g.input(0), one = Ints({1}, x);
  const Expr length =
      g.HasInput(1) ? Reshape(Op("Cast", {g.input(1)}, {{"to", int64_t{7}}}), one) : DimOf(x, axis);
  const Expr n = onesided && !inverse ? length : DimOf(g.output(), axis);
  Expr dx = Transform(g.dY(), n, axis, !inverse, inverse && onesided);
  if (inverse) dx = dx / Cast(n, x.dtype());
  if (inverse && onesided) dx = dx * SideWeights(dx, n, axis, g.Rank(0));
  if (g.HasInput(1)) dx = Fitted(dx, DimOf(x, axis), axis);
  g.SetInputGradient(0, PartsOf(x, dx));
}

// Y = F (w X[frames]);  dX = w F^H dY added at the frames, dw = sum of X[frames] F^H dY
void StftRule(GradientContext& g) {
  const Expr x = g.input(0), w = g.input(2);
  const Expr n = w ? ShapeOf(w)
                 : g.HasInput(3)
                     ? Reshape(Op("Cast", {g.input(3)}, {{"to", int64_t{7}}}), Ints({1}, x))
                     : DimOf(x, 1);
  auto iota = [&](Expr count) { return Op("Range", {Int(0, x), Squeeze(count, {0}), Int(1, x)}); };
  const Expr step = Reshape(Op("Cast", {g.input(1)}, {{"to", int64_t{7}}}), Ints({1}, x));
  const Expr places = Unsqueeze(iota(DimOf(g.output(), 1)) * step, {1}) + Unsqueeze(iota(n), {0});
  const Expr frames = PartsOf(x, Transform(g.dY(), n, 2, true, false));
  const Expr weighed = w ? frames * Unsqueeze(w, {1}) : frames;
  g.SetInputGradient(
      0, TrainingOp("GatherGrad", {weighed, places, ShapeOf(x)}, {{"axis", int64_t{1}}}));
  if (g.Needs(2)) g.SetInputGradient(2, ReduceSum(frames * Gather(x, places, 1), {0, 1, 3}, false));
}

}  // namespace
}  // namespace gradient

// clang-format off
std::vector<OpDef> SignalOps() {
  using Derivative = OpDef::Derivative;
  return {
    {.op_type = "DFT", .rule = {.function = gradient::DftRule, .stops = {1, 2}}},
    {.op_type = "MelWeightMatrix", .derivative = Derivative::kRefusal,
     .derivative_note = "a table made from two edge frequencies, rounded to bins"},
    {.op_type = "STFT", .rule = {.function = gradient::StftRule, .stops = {1, 3}},
     .derivative_note = "signal and window"},
  };
}
// clang-format on

}  // namespace caesura
