// SPDX-License-Identifier: Apache-2.0
// Running sums and products along an axis, and their gradients, as Scans.
#include <algorithm>
#include <limits>
#include <vector>

#include "core/ops/op_bodies.h"

namespace caesura::gradient {
namespace {

constexpr double kInfinity = std::numeric_limits<double>::infinity();

// Half types are summed in float32.
Expr Wide(Expr x) { return x.dtype() == DType::kFloat64 ? x : Cast(x, DType::kFloat32); }

// A tensor of `value`, of the shape of x without the axis.
Expr WithoutAxis(double value, Expr x, int64_t axis) {
  std::vector<int64_t> others;
  for (int64_t i = 0; i < x.rank(); ++i) {
    if (i != axis) others.push_back(i);
  }
  return Filled(value, Gather(ShapeOf(x), Ints(others, x), 0), x);
}

// The products of all elements before each one.
Expr ProductsBefore(Expr x, int64_t axis, bool is_reversed) {
  const auto step = [](const Exprs& product, const Exprs& x) -> Exprs {
    return {product[0] * x[0], product[0]};
  };
  return ScanOver({WithoutAxis(1, x, axis)}, {x}, axis, is_reversed, step)[1];
}

int64_t AxisOf(int64_t stated, int rank) { return stated < 0 ? stated + rank : stated; }

}  // namespace

void LogCumSumExpBody(OpBody& b) {
  const Expr x = Wide(b.input(0));
  const int rank = b.Rank(0);
  const int64_t axis = AxisOf(b.IntAttr("axis", -1), rank);
  const Expr none = WithoutAxis(-kInfinity, x, axis);
  const auto step = [](const Exprs& states, const Exprs& slices) -> Exprs {
    const Expr before = states[0], x = slices[0], most = Op("Max", {before, x});
    const Expr sum = most + Log(Exp(before - most) + Exp(x - most));
    const Expr y = Where(Op("IsInf", {most}), most, sum);
    return {y, y};
  };
  b.SetOutput(0, ScanOver({none}, {x}, axis, false, step)[1]);
}

// r_i = sum over j >= i of dY_j e^(Y_i - Y_j) = dY_i + r_(i+1) e^(Y_i - Y_(i+1));
// dX_i = r_i e^(X_i - Y_i)
void LogCumSumExpGradBody(OpBody& b) {
  const Expr dy = Wide(b.input(0)), x = Wide(b.input(1)), y = Wide(b.input(2));
  const int rank = b.Rank(1);
  const int64_t axis = AxisOf(b.IntAttr("axis", -1), rank);
  const auto step = [](const Exprs& states, const Exprs& slices) -> Exprs {
    const Expr dy = slices[0], y = slices[1], after = states[1];
    const Expr share = Where(Equal(y, after), Number(1, y), Exp(y - after));
    const Expr sum = dy + states[0] * share;
    return {sum, y, sum};
  };
  const Exprs none = {WithoutAxis(0, x, axis), WithoutAxis(kInfinity, x, axis)};
  b.SetOutput(0, ScanOver(none, {Shaped(dy, x), Shaped(y, x)}, axis, true, step)[2] * Exp(x - y));
}

// Y_i = X_1 ... X_i;  dX_k = X_1 ... X_(k-1) s_k with s_k = dY_k + X_(k+1) s_(k+1); exclusive:
// s_k = dY_(k+1) + X_(k+1) s_(k+1)
void CumProdGradBody(OpBody& b) {
  const Tensor* stated = b.Constant(2);
  if (stated == nullptr) return b.Refuse("has an axis that may change from run to run");
  const Expr dy = Wide(b.input(0)), x = Wide(b.input(1));
  const int rank = b.Rank(1);
  const int64_t axis = AxisOf(stated->ToVector<int64_t>()[0], rank);
  const bool is_reversed = b.IntAttr("reverse", 0) != 0;
  const bool is_exclusive = b.IntAttr("exclusive", 0) != 0;
  const auto step = [&](const Exprs& states, const Exprs& slices) -> Exprs {
    const Expr dy = slices[0], x = slices[1];
    const Expr sum = states[0] + (is_exclusive ? states[1] : dy);
    return {x * sum, Op("Identity", {dy}), sum};
  };
  const Expr none = WithoutAxis(0, x, axis);
  const Expr sums = ScanOver({none, none}, {Shaped(dy, x), x}, axis, !is_reversed, step)[2];
  b.SetOutput(0, ProductsBefore(x, axis, is_reversed) * sums);
}

// dX = dY times the product of those before and of those after; the reduced axes lie in a row.
void ReduceProdGradBody(OpBody& b) {
  const Tensor* stated = b.Constant(2);
  if (b.HasInput(2) && stated == nullptr)
    return b.Refuse("has axes that may change from run to run");
  const Expr dy = Wide(b.input(0)), one = Ints({-1}, dy);
  const Expr x = stated == nullptr ? Reshape(Wide(b.input(1)), one) : Wide(b.input(1));
  const int rank = stated == nullptr ? 1 : b.Rank(1);
  std::vector<bool> is_reduced(rank, stated == nullptr);
  if (stated != nullptr)
    for (const int64_t axis : stated->ToVector<int64_t>())
      is_reduced[axis < 0 ? axis + rank : axis] = true;
  std::vector<int64_t> order, back(rank);
  for (const bool last : {false, true}) {
    for (int i = 0; i < rank; ++i) {
      if (is_reduced[i] == last) order.push_back(i);
    }
  }
  for (int i = 0; i < rank; ++i) back[order[i]] = i;
  const std::vector<int64_t> kept(
      order.begin(), order.end() - std::count(is_reduced.begin(), is_reduced.end(), true));
  const auto axis = static_cast<int64_t>(kept.size());
  const Expr turned = Transpose(x, order), dims = Gather(ShapeOf(x), Ints(kept, x), 0);
  Expr rows = Op("Reshape", {turned, Concat({dims, one}, 0)});
  ValueType type = ValueType::Tensor(x.dtype());
  type.shape = std::vector<Dim>(axis + 1);
  rows.value()->set_type(std::move(type));
  const Expr given = Op("Reshape", {dy, Concat({dims, one}, 0)});
  Expr dx = ProductsBefore(rows, axis, false) * (ProductsBefore(rows, axis, true) * given);
  if (stated == nullptr) {  // whatever dY is, as in PyTorch
    const Expr zeros = ReduceSum(Mask(Equal(rows, Number(0, rows)), rows), {}, false);
    dx = Where(Greater(zeros, Number(1, zeros)), Number(0, dx), dx);
  }
  dx = Transpose(Op("Reshape", {dx, ShapeOf(turned)}), back);
  b.SetOutput(0, stated == nullptr ? ReshapeLike(dx, b.input(1)) : dx);
}

}  // namespace caesura::gradient
