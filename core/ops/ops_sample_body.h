// SPDX-License-Identifier: Apache-2.0
// The part that bodies of interpolations share: elements of planes, read at fractional places.
#ifndef CAESURA_CORE_OPS_OPS_SAMPLE_BODY_H_
#define CAESURA_CORE_OPS_OPS_SAMPLE_BODY_H_

#include <vector>

#include "core/gradient/op_body.h"

namespace caesura::gradient {

// The elements that P places read along one axis of a plane, [B, taps, P] each: where they are
// (int64), their weights, and the weights' derivatives by the place.
struct AxisTaps {
  Expr index, weight, slope;
};

// The elements that places read of planes: each tap of an axis with each one of the others.
struct Samples {
  Expr flat;     // [B, 1, taps P]: offsets in a plane, int64
  Expr weight;   // [B, 1, taps, P]
  Exprs slopes;  // by the place along each axis, [B, 1, taps, P] each
};

// `sizes`: of the axes, int64 scalars.
Samples Combined(const std::vector<AxisTaps>& axes, const Exprs& sizes);

// The two elements beside each place [B, P] along an axis of `size` (an int64 scalar), of which
// those outside have no weight.
AxisTaps LinearTaps(Expr place, Expr size);

// The elements [B, C, taps, P] that the places read of x [B, C, plane].
Expr Gathered(Expr x, const Samples& s);
// The sums of `values` [B, C, taps, P] over what was read, of the shape of x.
Expr Scattered(Expr values, const Samples& s, Expr x);

}  // namespace caesura::gradient

#endif  // CAESURA_CORE_OPS_OPS_SAMPLE_BODY_H_
