// SPDX-License-Identifier: Apache-2.0
// DeformConvGrad in ONNX's operators: Y = W columns with columns = mask * X at the places.
#include <vector>

#include "core/ops/op_bodies.h"
#include "core/ops/ops_sample_body.h"
#include "core/ops/ops_window_body.h"

namespace caesura::gradient {
namespace {

// The place that each tap reads for each output along an axis, without offsets: [taps, outputs].
Expr Starts(const BodyWindow& w, int axis, Expr dy) {
  int64_t taps = 1, inner = 1;
  for (int a = 0; a < w.axes(); ++a) taps *= w.kernel[a];
  for (int a = axis + 1; a < w.axes(); ++a) inner *= w.kernel[a];
  std::vector<int64_t> of_tap;
  for (int64_t k = 0; k < taps; ++k)
    of_tap.push_back(k / inner % w.kernel[axis] * w.dilations[axis] - w.begin[axis]);
  std::vector<int64_t> others;
  for (int a = 0; a < w.axes(); ++a) {
    if (a != axis) others.push_back(a);
  }
  const Expr count = Squeeze(DimOf(dy, 2 + axis), {0});
  Expr place = Op("Range", {Int(0, dy), count, Int(1, dy)}) * Int(w.strides[axis], dy);
  if (!others.empty()) place = Unsqueeze(place, others);
  const Expr all = Op("Reshape", {Expand(place, ShapeOf(dy, 2)), Ints({1, -1}, dy)});
  return Cast(Unsqueeze(Ints(of_tap, dy), {1}) + all, dy.dtype());
}

}  // namespace

// dcolumns = W^T dY, dW = dY columns^T; dmask, dX and doffset by what was read and its slopes
void DeformConvGradBody(OpBody& b) {
  const Expr dy = b.input(0), x = b.input(1), weights = b.input(2), offset = b.input(3),
             mask = b.input(5);
  const auto w = ReadBodyWindow(b, x, SpatialSizes(weights));
  if (!w) return;
  const auto &of_x = x.value()->type().shape, &of_w = weights.value()->type().shape;
  if (!of_x || !of_w || !(*of_x)[1].known() || !(*of_w)[0].known())
    return b.Refuse("has an unknown number of channels");
  const int64_t groups = b.IntAttr("group", 1), parts = b.IntAttr("offset_group", 1);
  const int64_t share = (*of_x)[1].value / parts, outputs = (*of_w)[0].value / groups;
  int64_t taps = 1;
  Exprs sizes;
  Expr plane, positions;
  for (int a = 0; a < w->axes(); ++a) {
    taps *= w->kernel[a];
    const Expr size = DimOf(x, 2 + a), count = DimOf(dy, 2 + a);
    sizes.push_back(Squeeze(size, {0}));
    plane = plane ? plane * size : size;
    positions = positions ? positions * count : count;
  }
  const auto shaped = [&](Expr v, const std::vector<int64_t>& first, Expr last) {
    return Op("Reshape", {v, Concat({Ints(first, v), last}, 0)});
  };
  const Expr rest = Ints({-1}, x);
  const Expr moved = shaped(offset, {-1, taps, w->axes()}, positions);
  std::vector<AxisTaps> axes;
  for (int a = 0; a < w->axes(); ++a) {
    const Expr at = Gather(moved, Int(a, x), 2) + Starts(*w, a, dy);
    const Expr rows = Concat({rest, Ints({taps}, x) * positions}, 0);
    axes.push_back(LinearTaps(Op("Reshape", {at, rows}), sizes[a]));
  }
  const Samples s = Combined(axes, sizes);
  const Expr planes = shaped(x, {-1, share}, plane), read = Gathered(planes, s);
  const Expr of_taps = Ints({taps}, x) * positions;
  const Expr factor = mask ? shaped(mask, {-1, 1, 1}, of_taps) : Expr();
  const auto masked = [&](Expr v) { return factor ? v * factor : v; };
  const Expr given = shaped(dy, {-1, groups, outputs}, positions);
  if (b.Wants(1)) {
    const Expr columns = masked(ReduceSum(read * s.weight, {2}, true));
    const int64_t rows = (*of_x)[1].value / groups * taps;
    const Expr turned = Transpose(shaped(columns, {-1, groups, rows}, positions), {0, 1, 3, 2});
    b.SetOutput(1, ReshapeLike(ReduceSum(Op("MatMul", {given, turned}), {0}, false), weights));
  }
  if (b.Wants(3)) {
    std::vector<int64_t> others = {0};
    for (int a = 0; a < w->axes(); ++a) others.push_back(2 + a);
    b.SetOutput(3, ReduceSum(dy, others, false));
  }
  if (!b.Wants(0) && !b.Wants(2) && !b.Wants(4)) return;
  const Expr factors = Transpose(shaped(weights, {groups, outputs}, rest), {0, 2, 1});
  const Expr columns = shaped(Op("MatMul", {factors, given}), {-1, share, 1}, of_taps);
  if (b.Wants(0)) b.SetOutput(0, ReshapeLike(Scattered(masked(columns) * s.weight, s, planes), x));
  const Expr by_weight = ReduceSum(columns * read, {1}, true);
  if (b.Wants(4)) b.SetOutput(4, ReshapeLike(ReduceSum(by_weight * s.weight, {2}, true), mask));
  if (!b.Wants(2)) return;
  Exprs slopes;
  for (int a = 0; a < w->axes(); ++a) {
    const Expr slope = masked(ReduceSum(by_weight * s.slopes[a], {2}, true));
    slopes.push_back(shaped(slope, {-1, taps, 1}, positions));
  }
  b.SetOutput(2, ReshapeLike(Concat(slopes, 2), offset));
}

}  // namespace caesura::gradient
