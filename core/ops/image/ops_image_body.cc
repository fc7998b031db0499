// SPDX-License-Identifier: Apache-2.0
// The gradients of resampling and of regions in ONNX's operators.
#include <limits>
#include <string>
#include <utility>
#include <vector>

#include "core/ops/op_bodies.h"
#include "core/ops/ops_sample_body.h"

namespace caesura::gradient {
namespace {

Expr Scalar(Expr dim) { return Squeeze(dim, {0}); }

// x [N, C, spatial...] as [N, C, plane], of three axes.
Expr Planes(Expr x) { return Op("Reshape", {x, Concat({ShapeOf(x, 0, 2), Ints({-1}, x)}, 0)}); }

// GridSample's paddings and kernels along one axis, as GridSampler has them (grid_sampler.h).
class GridAxis {
 public:
  GridAxis(OpBody& b, Expr size)
      : size_(size),
        mode_(b.Attr<std::string>("mode", "linear")),
        padding_(b.Attr<std::string>("padding_mode", "zeros")),
        has_corners_(b.IntAttr("align_corners", 0) != 0) {}

  // `grid`: this axis' numbers [B, P].
  AxisTaps Taps(Expr grid) {
    length_ = Cast(size_, grid.dtype());
    low_ = Number(has_corners_ ? 0 : -0.5, grid);
    high_ = length_ - (has_corners_ ? 1.0 : 0.5);
    Expr gain;
    const Expr at = Unsqueeze(Coordinate(grid, &gain), {1}), first = Op("Floor", {at});
    gain = Unsqueeze(gain, {1});
    AxisTaps taps;
    Expr pixels;
    if (mode_ == "nearest") {
      pixels = first;
      taps.weight = OnesLike(first);
      taps.slope = ZerosLike(first);
    } else if (mode_ == "cubic" || mode_ == "bicubic") {
      pixels = Concat({first - 1.0, first, first + 1.0, first + 2.0}, 1);
      SetCubic(pixels - at, &taps);
    } else {
      pixels = Concat({first, first + 1.0}, 1);
      const Expr part = at - first, one = OnesLike(part);
      taps.weight = Concat({1.0 - part, part}, 1);
      taps.slope = Concat({-one, one}, 1);
    }
    taps.slope = taps.slope * gain;
    return Inside(pixels, taps);
  }

 private:
  // Brought between the borders by reflection; `sign`: of its derivative.
  Expr Reflected(Expr x, Expr* sign) const {
    const Expr zero = Number(0, x), one = Number(1, x), raw = high_ - low_;
    const Expr is_flat = LessOrEqual(raw, zero), span = Where(is_flat, one, raw);
    const Expr is_under = Less(x, low_), distance = Where(is_under, low_ - x, x - high_);
    const Expr turns = Op("Floor", {distance / span}), rest = distance - turns * span;
    const Expr half = Op("Floor", {turns / 2.0}), is_even = Equal(turns - half * 2.0, zero);
    const Expr from_low = Equal(Mask(is_under, x), Mask(is_even, x));
    *sign = Where(is_flat, zero, Where(is_even, -one, one));
    return Where(is_flat, low_, Where(from_low, low_ + rest, high_ - rest));
  }

  Expr Coordinate(Expr grid, Expr* gain) const {
    const Expr zero = Number(0, grid), limit = Number(1 << 30, grid);
    const Expr scale = (has_corners_ ? length_ - 1.0 : length_) / 2.0;
    Expr x =
        has_corners_ ? (grid + 1.0) / 2.0 * (length_ - 1.0) : ((grid + 1.0) * length_ - 1.0) / 2.0;
    x = Where(Greater(x, -limit), x, -limit);  // NaN is far outside
    x = Where(Greater(x, limit), limit, x);
    if (mode_ == "nearest") x = Op("Round", {x});
    const Expr ones = OnesLike(x), is_inside = And(GreaterOrEqual(x, low_), LessOrEqual(x, high_));
    *gain = ones * scale;
    if (padding_ == "border") {
      *gain = Where(is_inside, *gain, zero);
      return Where(is_inside, x, Where(Less(x, zero), zero, length_ - 1.0));
    }
    if (padding_ != "reflection") return x;
    Expr sign;
    const Expr turned = Reflected(x, &sign);
    *gain = Where(is_inside, *gain, *gain * sign);
    return Where(is_inside, x, turned);
  }

  // Keys' kernel with a = -0.75 at the distances d = pixel - x, and its derivative by x.
  static void SetCubic(Expr d, AxisTaps* taps) {
    constexpr double a = -0.75;
    const Expr s = Abs(d), one = Number(1, d), is_near = LessOrEqual(s, one);
    const Expr direction = Where(Greater(d, Number(0, d)), -one, one);
    const Expr near = ((a + 2) * s - (a + 3)) * s * s + 1.0;
    const Expr far = ((a * s - 5 * a) * s + 8 * a) * s - 4 * a;
    taps->weight = Where(is_near, near, far);
    const Expr near_slope = (3 * (a + 2) * s - 2 * (a + 3)) * s;
    const Expr far_slope = (3 * a * s - 10 * a) * s + 8 * a;
    taps->slope = Where(is_near, near_slope, far_slope) * direction;
  }

  // The elements that stand for the pixels; those that stand for zeros have no weight.
  AxisTaps Inside(Expr pixels, AxisTaps taps) const {
    const Expr zero = Number(0, pixels), last = length_ - 1.0;
    const Expr is_inside = And(GreaterOrEqual(pixels, zero), LessOrEqual(pixels, last));
    Expr at = pixels;
    if (padding_ == "zeros") {
      taps.weight = Where(is_inside, taps.weight, zero);
      taps.slope = Where(is_inside, taps.slope, zero);
    } else if (padding_ == "reflection") {
      Expr sign;
      at = Where(is_inside, pixels, Reflected(pixels, &sign));
    }
    at = Where(Less(at, zero), zero, Where(Greater(at, last), last, at));
    taps.index = Cast(at, DType::kInt64);
    return taps;
  }

  Expr size_, length_, low_, high_;
  std::string mode_, padding_;
  bool has_corners_;
};

// Points [R, count] along one axis of regions, and 1 for those that a region has.
struct RegionPoints {
  Expr place, is_there, number;  // `number`: of a bin's points, [R]
};

// Points of region R along one axis: `corner` and `end` [R], `bins` of them, `sampling` points in
// each, 0: as many as a bin is long.
RegionPoints PointsOf(Expr corner, Expr end, Expr bins, int64_t sampling, bool half_pixel) {
  const Expr one = Number(1, corner), count = Cast(bins, corner.dtype());
  Expr length = end - corner;
  if (!half_pixel) length = Op("Max", {length, one});
  const Expr bin = length / count;
  const Expr ceiling = Op("Max", {Op("Ceil", {bin}), Number(0, bin)});
  const Expr number = sampling > 0 ? OnesLike(bin) * static_cast<double>(sampling) : ceiling;
  const Expr most = Op("Max", {Op("ReduceMax", {number}, {{"keepdims", int64_t{0}}}), one});
  const auto range = [](Expr count) {
    return Op("Range", {Number(0, count), count, Number(1, count)});
  };
  const Expr place = range(most);  // [S]
  const auto spread = [](Expr x, const std::vector<int64_t>& axes) { return Unsqueeze(x, axes); };
  const Expr wide = spread(bin, {1, 2}), points = Op("Max", {spread(number, {1, 2}), one});
  const Expr at = spread(corner, {1, 2}) + spread(range(count), {0, 2}) * wide +
                  (spread(place, {0, 1}) + 0.5) * wide / points;  // [R, bins, S]
  const Expr is_there = Less(spread(place, {0, 1}), spread(number, {1, 2}));
  const Expr rows = Concat({DimOf(corner, 0), Ints({-1}, corner)}, 0);
  const Expr everywhere = Expand(Mask(is_there, at), ShapeOf(at));
  return {Op("Reshape", {at, rows}), Op("Reshape", {everywhere, rows}), number};
}

// The elements around each point, the border's beyond it; none farther than one element outside.
AxisTaps RegionTaps(const RegionPoints& points, Expr size) {
  const Expr at = Unsqueeze(points.place, {1}), length = Cast(size, at.dtype());
  const Expr zero = Number(0, at), last = length - 1.0;
  const Expr is_inside = And(GreaterOrEqual(at, Number(-1, at)), LessOrEqual(at, length));
  const Expr there = Where(is_inside, Unsqueeze(points.is_there, {1}), zero);
  const Expr inner = Op("Min", {Op("Max", {at, zero}), last}), low = Op("Floor", {inner});
  const Expr part = inner - low, high = Op("Min", {low + 1.0, last});
  AxisTaps taps;
  taps.index = Cast(Where(Greater(there, zero), Concat({low, high}, 1), zero), DType::kInt64);
  taps.weight = Concat({1.0 - part, part}, 1) * there;
  taps.weight = Where(Greater(there, zero), taps.weight, zero);
  taps.slope = taps.weight;  // nobody asks for it
  return taps;
}

}  // namespace

// Each axis by itself: what it makes of the rows of an identity matrix are its weights.
void ResizeGradBody(OpBody& b) {
  if (b.Attr<std::string>("coordinate_transformation_mode", "half_pixel") == "tf_crop_and_resize" ||
      b.Attr<std::string>("keep_aspect_ratio_policy", "stretch") != "stretch")
    return b.Refuse("crops, or keeps the ratio of its sides");
  const Expr dy = b.input(0), shape = b.input(1);
  const int rank = b.Rank(0);
  std::vector<int64_t> axes = b.Attr<std::vector<int64_t>>("axes", {});
  if (axes.empty())
    for (int i = 0; i < rank; ++i) axes.push_back(i);
  AttributeMap attributes = b.attributes();
  attributes.erase("axes");
  attributes.erase("extrapolation_value");
  const bool by_scales = b.HasInput(3);
  const Tensor* scales = b.Constant(3);
  const auto& from = b.output().value()->type().shape;
  const auto& to = dy.value()->type().shape;
  Expr dx = dy;
  for (size_t i = 0; i < axes.size(); ++i) {
    const int64_t axis = axes[i] < 0 ? axes[i] + rank : axes[i];
    const bool is_known = from && to && (*from)[axis].known();
    if (by_scales && scales != nullptr && scales->ToVector<float>()[i] == 1) continue;
    if (!by_scales && is_known && (*from)[axis] == (*to)[axis]) continue;
    const Expr size = Gather(shape, Ints({axis}, dy), 0);
    const Expr identity = Op("EyeLike", {Filled(0, Concat({size, size}, 0), dy)});
    const Expr at = Ints({static_cast<int64_t>(i)}, dy);
    const Expr one = Op("CastLike", {Ints({1}, dy), b.input(by_scales ? 3 : 4)});
    const Expr scale = by_scales ? Concat({one, Gather(b.input(3), at, 0)}, 0) : Expr();
    const Expr sizes = by_scales ? Expr() : Concat({size, Gather(b.input(4), at, 0)}, 0);
    const Expr weights = Op("Resize", {identity, Expr(), scale, sizes}, attributes);
    if (axis == rank - 2) {
      dx = Op("MatMul", {weights, dx});
      continue;
    }
    std::vector<int64_t> swapped;
    for (int a = 0; a < rank; ++a) swapped.push_back(a);
    std::swap(swapped[axis], swapped[rank - 1]);
    const Expr turned = Transpose(weights, {1, 0});
    dx = axis == rank - 1 ? Op("MatMul", {dx, turned})
                          : Transpose(Op("MatMul", {Transpose(dx, swapped), turned}), swapped);
  }
  b.SetOutput(0, dx);
}

// dX = dY spread with the weights of what each place read, dgrid = dY X times their slopes
void GridSampleGradBody(OpBody& b) {
  const Expr dy = b.input(0), x = b.input(1), grid = b.input(2);
  const int rank = b.Rank(1) - 2;
  std::vector<AxisTaps> axes;
  Exprs sizes;
  for (int a = 0; a < rank; ++a) {
    const Expr number = Gather(grid, Int(rank - 1 - a, grid), rank + 1);
    const Expr flat = Op("Reshape", {number, Concat({DimOf(x, 0), Ints({-1}, x)}, 0)});
    sizes.push_back(Scalar(DimOf(x, 2 + a)));
    axes.push_back(GridAxis(b, sizes.back()).Taps(flat));
  }
  const Samples s = Combined(axes, sizes);
  const Expr planes = Planes(x), given = Unsqueeze(Planes(dy), {2});
  if (b.Wants(0)) b.SetOutput(0, ReshapeLike(Scattered(given * s.weight, s, planes), x));
  if (!b.Wants(1)) return;
  const Expr by_weight = ReduceSum(given * Gathered(planes, s), {1}, true);
  Exprs slopes;
  for (int a = rank - 1; a >= 0; --a)
    slopes.push_back(Unsqueeze(ReduceSum(by_weight * s.slopes[a], {1, 2}, false), {2}));
  b.SetOutput(1, ReshapeLike(Concat(slopes, 2), grid));
}

// dX = dY spread over the points of its bin with the weights of the elements around them
void RoiAlignGradBody(OpBody& b) {
  if (b.Attr<std::string>("mode", "avg") != "avg") return b.Refuse("takes maxima of points");
  const Expr x = b.input(1), rois = b.input(2), dy = b.input(0);
  const bool half_pixel =
      b.Attr<std::string>("coordinate_transformation_mode", "half_pixel") == "half_pixel";
  const double scale = b.FloatAttr("spatial_scale", 1), shift = half_pixel ? 0.5 : 0;
  const int64_t sampling = b.IntAttr("sampling_ratio", 0);
  const int64_t bins[2] = {b.IntAttr("output_height", 1), b.IntAttr("output_width", 1)};
  std::vector<AxisTaps> axes;
  Exprs sizes, numbers;
  for (int a = 0; a < 2; ++a) {  // rows, columns
    const auto corner = [&](int64_t i) { return Gather(rois, Int(i, rois), 1) * scale - shift; };
    const RegionPoints points =
        PointsOf(corner(1 - a), corner(3 - a), Int(bins[a], rois), sampling, half_pixel);
    sizes.push_back(Scalar(DimOf(x, 2 + a)));
    axes.push_back(RegionTaps(points, sizes.back()));
    numbers.push_back(points.number);
  }
  // Every row with every column: [R, 2, rows, 1] and [R, 2, 1, columns].
  const Expr rows = DimOf(axes[0].index, 2), columns = DimOf(axes[1].index, 2);
  const auto paired = [&](Expr v, int a) {
    const Expr apart = Unsqueeze(v, {a == 0 ? 3 : 2});
    const Expr all = Expand(apart, Concat({Ints({1, 1}, v), rows, columns}, 0));
    return Op("Reshape", {all, Concat({DimOf(v, 0), DimOf(v, 1), Ints({-1}, v)}, 0)});
  };
  for (int a = 0; a < 2; ++a)
    axes[a] = {paired(axes[a].index, a), paired(axes[a].weight, a), paired(axes[a].slope, a)};
  Samples s = Combined(axes, sizes);
  const Expr zero = Number(0, numbers[0]), count = numbers[0] * numbers[1];
  const Expr share = Reciprocal(Op("Max", {count, Number(1, zero)}));  // [R]
  // dY of each point's bin: [R, C, bins, 1, bins, 1] over the bins' points.
  const Expr points = Op(
      "Reshape",
      {Op("Expand", {Unsqueeze(dy, {3, 5}), Concat({Ints({1, 1, 1}, x), rows / Ints({bins[0]}, x),
                                                    Ints({1}, x), columns / Ints({bins[1]}, x)},
                                                   0)}),
       Concat({ShapeOf(dy, 0, 2), Ints({1, -1}, x)}, 0)});
  const Expr values = points * s.weight * Unsqueeze(share, {1, 2, 3});  // [R, C, taps, P]
  // All regions in one row of each channel, which holds the planes of all samples.
  const auto by_channels = [](Expr v) {
    return Op("Reshape", {Transpose(v, {1, 0, 2, 3}),
                          Concat({Ints({1}, v), DimOf(v, 1), Ints({1, -1}, v)}, 0)});
  };
  const Expr plane = sizes[0] * sizes[1];
  const Expr begin = Unsqueeze(b.input(3) * plane, {1, 2});
  s.flat = Op("Reshape", {s.flat + begin, Ints({1, 1, -1}, x)});
  const Expr planes = Op("Reshape", {Transpose(Planes(x), {1, 0, 2}),
                                     Concat({Ints({1}, x), DimOf(x, 1), Ints({-1}, x)}, 0)});
  const Expr sums = Scattered(by_channels(values), s, planes);
  const Expr apart = Op("Reshape", {sums, Concat({DimOf(x, 1), DimOf(x, 0), Ints({-1}, x)}, 0)});
  b.SetOutput(0, ReshapeLike(Transpose(apart, {1, 0, 2}), x));
}

// dX = dY where the largest element of its bin is, the first one of equals
void MaxRoiPoolGradBody(OpBody& b) {
  const Expr dy = b.input(0), x = b.input(1), rois = b.input(2);
  const double scale = b.FloatAttr("spatial_scale", 1);
  const std::vector<int64_t> bins = b.Attr<std::vector<int64_t>>("pooled_shape", {});
  const auto corner = [&](int64_t i) {  // rounded away from zero at a half
    const Expr at = Cast(Gather(rois, Int(i, rois), 1), DType::kFloat64) * scale;
    return Sign(at) * Op("Floor", {Abs(at) + 0.5});
  };
  // Which elements each bin has along an axis: [R, bins, size].
  const auto members = [&](int axis) {
    const Expr first = Unsqueeze(corner(2 - axis), {1, 2}),
               last = Unsqueeze(corner(4 - axis), {1, 2});
    const Expr bin =
        Op("Max", {last - first + 1.0, Number(1, first)}) / static_cast<double>(bins[axis]);
    const auto range = [&](Expr count, const std::vector<int64_t>& axes) {
      return Unsqueeze(Cast(Op("Range", {Int(0, x), count, Int(1, x)}), DType::kFloat64), axes);
    };
    const Expr number = range(Int(bins[axis], x), {0, 2});
    const Expr place = range(Scalar(DimOf(x, 2 + axis)), {0, 1});
    return And(GreaterOrEqual(place, first + Op("Floor", {number * bin})),
               Less(place, first + Op("Ceil", {(number + 1.0) * bin})));
  };
  const Expr rows = Unsqueeze(members(0), {2, 4}), columns = Unsqueeze(members(1), {1, 3});
  const Expr inside =
      Op("Reshape",
         {And(rows, columns), Concat({DimOf(rois, 0), Ints({1, bins[0] * bins[1], -1}, x)}, 0)});
  const Expr batches = Cast(Gather(rois, Int(0, rois), 1), DType::kInt64);
  const Expr planes = Unsqueeze(Gather(Planes(x), batches, 0), {2});  // [R, C, 1, plane]
  const Expr seen = Where(inside, planes, Number(-std::numeric_limits<double>::infinity(), planes));
  const Expr place = Op("ArgMax", {seen}, {{"axis", int64_t{3}}, {"keepdims", int64_t{0}}});
  place.value()->set_type(ValueType::Tensor(DType::kInt64));  // [R, C, bins]
  const Expr is_any = Greater(
      Op("ReduceMax", {Mask(inside, dy), Ints({3}, x)}, {{"keepdims", int64_t{0}}}), Number(0, dy));
  const Expr given = Where(is_any, Planes(dy), Number(0, dy));
  const Expr plane = Scalar(DimOf(x, 2)) * Scalar(DimOf(x, 3)), channels = Scalar(DimOf(x, 1));
  const Expr channel = Unsqueeze(Op("Range", {Int(0, x), channels, Int(1, x)}), {0, 2});
  const Expr flat = (Unsqueeze(batches, {1, 2}) * channels + channel) * plane + place;
  const Expr sums = Op("ScatterElements",
                       {Filled(0, Unsqueeze(Op("Size", {x}), {0}), dy),
                        Reshape(flat, Ints({-1}, x)), Reshape(given, Ints({-1}, x))},
                       {{"axis", int64_t{0}}, {"reduction", std::string("add")}});
  b.SetOutput(0, ReshapeLike(sums, x));
}

}  // namespace caesura::gradient
