// SPDX-License-Identifier: Apache-2.0
#include "core/ops/ops_sample_body.h"

#include <string>

namespace caesura::gradient {
namespace {

Expr Places(const Samples& s, Expr x) {
  return Expand(s.flat, Concat({ShapeOf(x, 0, 2), DimOf(s.flat, 2)}, 0));
}

}  // namespace

Samples Combined(const std::vector<AxisTaps>& axes, const Exprs& sizes) {
  const auto rank = static_cast<int>(axes.size());
  // [B, taps, P] with the taps at an axis of their own.
  const auto apart = [&](Expr x, int axis) {
    std::vector<int64_t> others;
    for (int a = 0; a < rank; ++a) {
      if (a != axis) others.push_back(1 + a);
    }
    return others.empty() ? x : Unsqueeze(x, others);
  };
  const Expr like = axes[0].index;
  const Expr batch = DimOf(like, 0), places = DimOf(like, 2), rest = Ints({-1}, like),
             one = Ints({1}, like);
  const auto product = [&](int slope_of) {
    Expr all;
    for (int a = 0; a < rank; ++a) {
      const Expr own = apart(a == slope_of ? axes[a].slope : axes[a].weight, a);
      all = all ? all * own : own;
    }
    return Op("Reshape", {all, Concat({batch, one, rest, places}, 0)});
  };
  Samples s;
  Expr offset;
  for (int a = 0; a < rank; ++a)
    offset = offset ? offset * sizes[a] + apart(axes[a].index, a) : apart(axes[a].index, a);
  s.flat = Op("Reshape", {offset, Concat({batch, one, rest}, 0)});
  s.weight = product(-1);
  for (int a = 0; a < rank; ++a) s.slopes.push_back(product(a));
  return s;
}

AxisTaps LinearTaps(Expr place, Expr size) {
  const Expr at = Unsqueeze(place, {1}), length = Cast(size, place.dtype());
  const Expr low = Op("Floor", {at}), part = at - low;
  const Expr before = GreaterOrEqual(at, Number(-1, at)), after = Less(at, length);
  const Expr is_near = And(before, after);  // NaN is not
  const Expr first = Where(is_near, low, Number(-1, low));
  const Expr pixels = Concat({first, first + 1.0}, 1);
  const Expr is_inside =
      And(And(GreaterOrEqual(pixels, Number(0, pixels)), Less(pixels, length)), is_near);
  const Expr zero = Number(0, pixels);
  const Expr one = OnesLike(part);
  AxisTaps taps;
  taps.index = Cast(Where(is_inside, pixels, zero), DType::kInt64);
  taps.weight = Where(is_inside, Concat({1.0 - part, part}, 1), zero);
  taps.slope = Where(is_inside, Concat({-one, one}, 1), zero);
  return taps;
}

Expr Gathered(Expr x, const Samples& s) {
  const Expr read = Op("GatherElements", {x, Places(s, x)}, {{"axis", int64_t{2}}});
  return Op("Reshape", {read, Concat({ShapeOf(x, 0, 2), ShapeOf(s.weight, 2)}, 0)});
}

Expr Scattered(Expr values, const Samples& s, Expr x) {
  const Expr updates = Op("Reshape", {values, Concat({ShapeOf(x, 0, 2), Ints({-1}, x)}, 0)});
  return Op("ScatterElements", {ZerosLike(x), Places(s, x), updates},
            {{"axis", int64_t{2}}, {"reduction", std::string("add")}});
}

}  // namespace caesura::gradient
