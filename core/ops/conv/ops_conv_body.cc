// SPDX-License-Identifier: Apache-2.0
// The gradients of convolutions in ONNX's operators: that of the source is a ConvTranspose, that of
// the weights a Conv in which batch and channels change places.
#include <vector>

#include "core/ops/op_bodies.h"
#include "core/ops/ops_window_body.h"

namespace caesura::gradient {
namespace {

std::vector<int64_t> Order(std::vector<int64_t> first, int rank) {
  for (int i = static_cast<int>(first.size()); i < rank; ++i) first.push_back(i);
  return first;
}

// x [N, g C, ...] as [g N C or C g N, ...]: `channels_first` C, (g N), otherwise (g C), N.
Expr BatchAmongChannels(Expr x, int64_t groups, bool channels_first, int rank) {
  if (groups == 1) return Transpose(x, Order({1, 0}, rank));
  const Expr split =
      Reshape(x, Concat({DimOf(x, 0), Ints({groups}, x), Ints({-1}, x), ShapeOf(x, 2)}, 0));
  if (!channels_first) {
    // [N, g, C] to [g C, N] needs no split.
    return Transpose(x, Order({1, 0}, rank));
  }
  const Expr turned = Transpose(split, Order({2, 1, 0}, rank + 1));
  return Op("Reshape", {turned, Concat({Ints({0, -1}, x), ShapeOf(x, 2)}, 0)});
}

// The gradient of weights [g M, C, kernel...] of a convolution of src [N, g C, ...] to dst
// [N, g M, ...].
Expr WeightGradient(Expr src, Expr dst, int64_t groups, const BodyWindow& w) {
  const int rank = w.axes() + 2;
  const AttributeMap attributes = {
      {"strides", w.dilations}, {"dilations", w.strides}, {"pads", w.Pads()}, {"group", groups}};
  const Expr swapped = Op(
      "Conv",
      {BatchAmongChannels(src, groups, true, rank), BatchAmongChannels(dst, groups, false, rank)},
      attributes);
  // Positions that no window reached come after the kernel's.
  std::vector<int64_t> axes, zeros(w.axes(), 0);
  for (int a = 0; a < w.axes(); ++a) axes.push_back(2 + a);
  bool is_exact = true;
  const std::vector<int64_t> inputs = SpatialSizes(src), outputs = SpatialSizes(dst);
  for (int a = 0; a < w.axes(); ++a) {
    const bool is_known = static_cast<int>(inputs.size()) > a && inputs[a] >= 0 &&
                          static_cast<int>(outputs.size()) > a && outputs[a] >= 0;
    const int64_t left =
        is_known ? inputs[a] + w.begin[a] + w.end[a] - ((outputs[a] - 1) * w.strides[a] + 1) : -1;
    is_exact = is_exact && is_known && left / w.dilations[a] + 1 == w.kernel[a];
  }
  const Expr kernel =
      is_exact ? swapped
               : Op("Slice", {swapped, Ints(zeros, src), Ints(w.kernel, src), Ints(axes, src)});
  return Transpose(kernel, Order({1, 0}, rank));
}

std::vector<int64_t> OtherAxes(int rank) {
  std::vector<int64_t> axes = {0};
  for (int i = 2; i < rank; ++i) axes.push_back(i);
  return axes;
}

}  // namespace

void ConvGradBody(OpBody& b) {
  const Expr dy = b.input(0), x = b.input(1), weights = b.input(2);
  const int64_t groups = b.IntAttr("group", 1);
  const auto w = ReadBodyWindow(b, x, SpatialSizes(weights));
  if (!w) return;
  if (b.Wants(0)) b.SetOutput(0, SpreadWindows(dy, weights, groups, *w, x));
  if (b.Wants(1)) b.SetOutput(1, WeightGradient(x, dy, groups, *w));
  if (b.Wants(2)) b.SetOutput(2, ReduceSum(dy, OtherAxes(w->axes() + 2), false));
}

// dY takes the place of the source of the convolution whose transpose the node's forward is.
void ConvTransposeGradBody(OpBody& b) {
  const Expr dy = b.input(0), x = b.input(1), weights = b.input(2);
  const int64_t groups = b.IntAttr("group", 1);
  if (b.Attr<std::string>("auto_pad", "NOTSET") != "NOTSET" ||
      b.node().HasAttribute("output_shape"))
    return b.Refuse("pads by the size of its output");
  auto w = ReadBodyWindow(b, x, SpatialSizes(weights));
  if (!w) return;
  const AttributeMap attributes = {
      {"strides", w->strides}, {"dilations", w->dilations}, {"pads", w->Pads()}, {"group", groups}};
  if (b.Wants(0)) {
    std::vector<int64_t> axes, zeros(w->axes(), 0);
    for (int a = 0; a < w->axes(); ++a) axes.push_back(2 + a);
    Expr dx = Op("Conv", {dy, weights}, attributes);
    if (b.node().HasAttribute("output_padding"))  // a last window may begin in it
      dx = Op("Slice", {dx, Ints(zeros, x), ShapeOf(x, 2), Ints(axes, x)});
    b.SetOutput(0, dx);
  }
  if (b.Wants(1)) b.SetOutput(1, WeightGradient(dy, x, groups, *w));
  if (b.Wants(2)) b.SetOutput(2, ReduceSum(dy, OtherAxes(w->axes() + 2), false));
}

}  // namespace caesura::gradient
