// SPDX-License-Identifier: Apache-2.0
// The rows of gathers, scatters and their like (core/graph/op_def.h), and their gradient rules.
#include <cmath>
#include <functional>
#include <vector>

#include "core/gradient/gradient_rules.h"
#include "core/gradient/op_body.h"
#include "core/graph/op_def.h"
#include "core/ops/infer_types.h"

namespace caesura {
namespace gradient {
namespace {

// 0, 1, ..., n - 1 as int64; n has rank 1 and one element.
Expr Iota(Expr n) { return Op("Range", {Int(0, n), Squeeze(n, {0}), Int(1, n)}); }

// Y = X[I] along an axis;  dX = zeros with dX[I] += dY
void GatherRule(GradientContext& g) {
  const AttributeMap axis = {{"axis", g.IntAttr("axis", 0)}};
  g.SetInputGradient(0, TrainingOp("GatherGrad", {g.dY(), g.input(1), ShapeOf(g.input(0))}, axis));
}

Expr ScatterAdd(const char* op, Expr base, Expr indices, Expr updates,
                AttributeMap attributes = {}) {
  attributes["reduction"] = std::string("add");
  return Op(op, {base, indices, updates}, std::move(attributes));
}

// Y = X at one index an element;  dX = zeros with dY added there
void GatherElementsRule(GradientContext& g) {
  const Expr zeros = ZerosLike(g.input(0));
  g.SetInputGradient(
      0, ScatterAdd("ScatterElements", zeros, g.input(1), g.dY(), g.Attributes({"axis"})));
}

// Y = X at index tuples, apart for each batch;  dX = zeros with dY added there, the batch's number
// put before the tuple
void GatherNdRule(GradientContext& g) {
  const int64_t b = g.IntAttr("batch_dims", 0);
  const Expr x = g.input(0), i = g.input(1), dy = g.dY();
  if (b == 0) return g.SetInputGradient(0, ScatterAdd("ScatterND", ZerosLike(x), i, dy));
  const Expr n = Op("ReduceProd", {ShapeOf(x, 0, b), Ints({0}, x)}),
             tuples = Reshape(i, Concat({n, ShapeOf(i, b)}, 0));
  std::vector<int64_t> ones(g.Rank(1) - b, 1);
  const Expr column = Reshape(Iota(n), Concat({n, Ints(ones, x)}, 0));
  const Expr numbers = Expand(column, Concat({ShapeOf(tuples, 0, -1), Ints({1}, x)}, 0));
  const Expr zeros = Filled(0, Concat({n, ShapeOf(x, b)}, 0), x),
             updates = Reshape(dy, Concat({n, ShapeOf(dy, b)}, 0));
  g.SetInputGradient(
      0, ReshapeLike(ScatterAdd("ScatterND", zeros, Concat({numbers, tuples}, -1), updates), x));
}

// ScatterElements and ScatterND share this: U is written to places of X, and those places
// can be read.
struct Places {
  std::function<Expr(Expr x, Expr u, const char* reduction)> write;
  std::function<Expr(Expr x)> read;
};

// Y = X with U in its places;  dX = dY elsewhere, dU = dY there
void ReplaceGradient(GradientContext& g, const Places& places) {
  if (g.Needs(0)) g.SetInputGradient(0, places.write(g.dY(), ZerosLike(g.input(2)), "none"));
  g.SetInputGradient(2, places.read(g.dY()));
}

// Y = X times all U of a place;  dX, dU = dY times the product of the other factors
// That product is Y / x, or where x is 0, that of the factors other than 0: if x is the only zero.
// Beside another zero it is 0, but its gradient is not: it is written as a product with that zero.
void ProductGradient(GradientContext& g, const Places& places) {
  const Expr x = g.input(0), u = g.input(2), zero = Number(0, x), one = Number(1, x);
  const auto or_one = [&](Expr factor) { return Where(Equal(factor, zero), one, factor); };
  const auto if_zero = [&](Expr factor, Expr value) {
    return Where(Equal(factor, zero), value, zero);
  };
  const Expr count = places.write(if_zero(x, one), if_zero(u, one), "add"),
             sum_of_zeros = places.write(if_zero(x, x), if_zero(u, u), "add"),
             product = places.write(or_one(x), or_one(u), "mul");
  const auto without = [&](Expr factor, const std::function<Expr(Expr)>& at) {
    const Expr of_two = Where(Equal(at(count), Number(2, x)), at(product), zero);
    const Expr others =
        Where(Equal(at(count), one), at(product), of_two * (at(sum_of_zeros) - factor));
    return Where(Equal(factor, zero), others, at(g.output()) / or_one(factor));
  };
  g.SetInputGradient(0, g.dY() * without(x, [](Expr all) { return all; }));
  g.SetInputGradient(2, places.read(g.dY()) * without(u, places.read));
}

// Y = largest (smallest) of X and all U of a place;  dX, dU = dY shared by those that equal Y
void ExtremumGradient(GradientContext& g, const Places& places) {
  const Expr y = g.output(), x_mask = Mask(Equal(g.input(0), y), y),
             u_mask = Mask(Equal(g.input(2), places.read(y)), y);
  const Expr share = g.dY() / places.write(x_mask, u_mask, "add");
  g.SetInputGradient(0, share * x_mask);
  g.SetInputGradient(2, places.read(share) * u_mask);
}

// Y = X with U added in its places;  dX = dY, dU = dY there
void AddGradient(GradientContext& g, const Places& places) {
  g.SetInputGradient(0, g.dY());
  g.SetInputGradient(2, places.read(g.dY()));
}

void ScatterGradient(GradientContext& g, const char* scatter, const char* gather) {
  const Expr indices = g.input(1);
  const AttributeMap axis = g.Attributes({"axis"});
  const Places places = {[=](Expr x, Expr u, const char* reduction) {
                           AttributeMap attributes = axis;
                           attributes["reduction"] = std::string(reduction);
                           return Op(scatter, {x, indices, u}, std::move(attributes));
                         },
                         [=](Expr x) { return Op(gather, {x, indices}, axis); }};
  const std::string reduction = g.Attr<std::string>("reduction", "none");
  if (reduction == "none") return ReplaceGradient(g, places);
  if (reduction == "add") return AddGradient(g, places);
  if (reduction == "mul") return ProductGradient(g, places);
  ExtremumGradient(g, places);
}

void ScatterElementsRule(GradientContext& g) {
  ScatterGradient(g, "ScatterElements", "GatherElements");
}
void ScatterNdRule(GradientContext& g) { ScatterGradient(g, "ScatterND", "GatherND"); }

// Y = cache with U from position w of each row on;  dcache = dY elsewhere, dU = dY there
void TensorScatterRule(GradientContext& g) {
  const Expr u = g.input(1), w = g.input(2);
  const int rank = g.Rank(1);
  const int64_t stated = g.IntAttr("axis", -2), axis = stated < 0 ? stated + rank : stated;
  g.SetInputGradient(0, Op("TensorScatter", {g.dY(), ZerosLike(u), w}, g.attributes()));
  std::vector<int64_t> along(rank, 1), down(rank, 1);
  along[axis] = down[0] = -1;
  Expr index = Reshape(Iota(DimOf(u, axis)), Ints(along, u));
  if (w) index = index + Reshape(w, Ints(down, u));
  if (g.Attr<std::string>("mode", "linear") == "circular")
    index = Op("Mod", {index, DimOf(g.input(0), axis)});
  g.SetInputGradient(1,
                     Op("GatherElements", {g.dY(), Expand(index, ShapeOf(u))}, {{"axis", axis}}));
}

// Y = on where the index says so, else off;  don = sum of dY there, doff = sum of dY elsewhere
void OneHotRule(GradientContext& g) {
  const Expr zero_one =
      Concat({Unsqueeze(Number(0, g.dY()), {0}), Unsqueeze(Number(1, g.dY()), {0})}, 0);
  const Expr mask = Op("OneHot", {g.input(0), g.input(1), zero_one}, g.attributes());
  const Expr on = ReduceSum(g.dY() * mask, {}, false), off = ReduceSum(g.dY(), {}, false) - on;
  g.SetInputGradient(2, Concat({Unsqueeze(off, {0}), Unsqueeze(on, {0})}, 0));
}

// Y = the slices of X that C marks;  dX = zeros with dY in those slices
void CompressRule(GradientContext& g) {
  const Expr x = g.input(0);
  // Marks after the end of X mark nothing.
  auto marked = [&](Expr size) {
    return Squeeze(Op("NonZero", {Slice(g.input(1), Ints({0}, x), size, 0)}), {0});
  };
  if (g.node().HasAttribute("axis")) {
    const Expr places = marked(DimOf(x, g.IntAttr("axis", 0)));
    return g.SetInputGradient(
        0, TrainingOp("GatherGrad", {g.dY(), places, ShapeOf(x)}, g.attributes()));
  }
  const Expr size =
      Op("ReduceProd", {ShapeOf(x), Ints({0}, x)});  // without an axis X counts as flat
  g.SetInputGradient(
      0, ReshapeLike(TrainingOp("GatherGrad", {g.dY(), marked(size), size}, {{"axis", int64_t{0}}}),
                     x));
}

// Y_i = s + i d;  ds = sum of dY, dd = sum of i dY
void RangeRule(GradientContext& g) {
  const Expr i = Cast(Iota(ShapeOf(g.dY())), g.dY().dtype());
  g.SetInputGradient(0, ReshapeLike(ReduceSum(g.dY(), {}, false), g.input(0)));
  g.SetInputGradient(2, ReshapeLike(ReduceSum(g.dY() * i, {}, false), g.input(2)));
}

// D = base (or zeros) with dY added at indices;  ddY = G at the indices, dbase = G
void GatherGradRule(GradientContext& g) {
  g.SetInputGradient(0, Gather(g.dY(), g.input(1), g.IntAttr("axis", 0)));
  g.SetInputGradient(3, g.dY());
}

// --- bodies ---

void GatherGradBody(OpBody& b) {
  const int of_dy = b.Rank(0), of_indices = b.Rank(1), rank = of_dy - of_indices + 1;
  const Expr dy = b.input(0), indices = Cast(b.input(1), DType::kInt64), shape = b.input(2);
  const int64_t given = b.IntAttr("axis", 0), axis = given < 0 ? given + rank : given;
  // The axis first, of dY the axes of the indices: then it is a scatter of slices.
  std::vector<int64_t> order = {axis}, dy_order, back(rank);
  for (int i = 0; i < of_indices; ++i) dy_order.push_back(axis + i);
  for (int i = 0; i < rank; ++i) {
    if (i != axis) order.push_back(i);
  }
  for (int i = 0; i < of_dy; ++i) {
    if (i < axis || i >= axis + of_indices) dy_order.push_back(i);
  }
  for (int i = 0; i < rank; ++i) back[order[i]] = i;
  const auto moved = [&](Expr x, const std::vector<int64_t>& to) {
    return axis == 0 ? x : Transpose(x, to);
  };
  Expr base = b.input(3);
  if (base) base = moved(base, order);
  else base = Filled(0, axis == 0 ? shape : Gather(shape, Ints(order, shape), 0), dy);
  const Expr sums = Op("ScatterND", {base, Unsqueeze(indices, {-1}), moved(dy, dy_order)},
                       {{"reduction", std::string("add")}});
  b.SetOutput(0, moved(sums, back));
}

}  // namespace
}  // namespace gradient

// clang-format off
std::vector<OpDef> IndexingOps() {
  return {
    {.op_type = "Compress", .rule = {.function = gradient::CompressRule, .stops = {1}}},
    {.op_type = "Gather", .half_inputs = 1, .rule = {.function = gradient::GatherRule, .stops = {1}}},
    {.op_type = "GatherElements", .rule = {.function = gradient::GatherElementsRule, .stops = {1}}},
    {.op_type = "GatherND", .rule = {.function = gradient::GatherNdRule, .stops = {1}}},
    {.op_type = "OneHot", .rule = {.function = gradient::OneHotRule, .stops = {0, 1}},
     .derivative_note = "values"},
    {.op_type = "Range", .rule = {.function = gradient::RangeRule, .stops = {1}},
     .derivative_note = "start and delta; the limit only decides the length"},
    {.op_type = "ScatterElements", .rule = {.function = gradient::ScatterElementsRule, .stops = {1}},
     .derivative_note = "reductions none, add, mul, max, min"},
    {.op_type = "ScatterND", .rule = {.function = gradient::ScatterNdRule, .stops = {1}},
     .derivative_note = "reductions none, add, mul, max, min"},
    {.op_type = "TensorScatter", .rule = {.function = gradient::TensorScatterRule, .stops = {2}}},
    // GatherGrad (dY, indices, shape[host int64], base?) -> dX  attribute axis: adds dY's slices, in their order, to
    // the base (in its place where nobody else reads it), or into zeros of `shape`
    {.op_type = "GatherGrad", .domain = kCaesuraDomain, .min_inputs = 3, .max_inputs = 4,
     .infer = ShapeOfInput<2>, .rule = {.function = gradient::GatherGradRule, .stops = {1, 2}},
     .body = gradient::GatherGradBody},
    {.op_type = "Scatter", .rule = {.function = gradient::ScatterElementsRule, .stops = {1}}},
  };
}
// clang-format on

}  // namespace caesura
