// SPDX-License-Identifier: Apache-2.0
// The rows of the optimizers and sums of gradients (core/graph/op_def.h).
#include <climits>
#include <utility>
#include <vector>

#include "core/graph/op_def.h"
#include "core/ops/op_bodies.h"

namespace caesura {
namespace gradient {
namespace {

void AccumulatedBody(OpBody& b) {
  b.SetOutput(0, Where(b.input(2), b.input(1), b.input(0) + b.input(1)));
}

void ClipScaleBody(OpBody& b) {
  const Expr norm = Cast(b.input(0), DType::kFloat64), factor = Cast(b.input(1), DType::kFloat64);
  Expr scale = factor;
  if (const Tensor* most = b.node().FindAttr<Tensor>("max_norm")) {
    const Expr ratio = *most->data<double>() / (factor * norm + 1e-6);
    const Expr one = Number(1, ratio);
    scale = factor * Where(Greater(ratio, one), one, ratio);
  }
  // An infinite norm makes NaN of it, which updates leave the step out for.
  if (b.IntAttr("skip_nonfinite", 0) != 0) scale = scale + (norm - norm);
  b.SetOutput(0, scale);
}

// The levels of a sum [levels, ...], each with a bool: whether the number of values has its bit.
std::vector<std::pair<Expr, Expr>> Levels(OpBody& b) {
  const Expr all = b.input(0);
  const auto& shape = all.value()->type().shape;
  std::vector<std::pair<Expr, Expr>> levels;
  if (!shape || !(*shape)[0].known()) b.Refuse("has an unknown number of levels");
  for (int64_t i = 0; b.refusal().empty() && i < (*shape)[0].value; ++i) {
    const Expr index = b.input(2), bit = Int(int64_t{1} << i, index), zero = Int(0, index);
    const Expr is_full = Greater(Op("BitwiseAnd", {index, bit}), zero);
    levels.emplace_back(Gather(all, Int(i, index), 0), is_full);
  }
  return levels;
}

// A value goes up over all levels that are full, and stays in the first that is not.
void PairwiseAccumulatorBody(OpBody& b) {
  Expr sum = b.input(1), moves;
  Exprs after;
  for (const auto& [level, is_full] : Levels(b)) {
    const Expr stays = Op("Not", {is_full});
    const Expr next = Where(moves ? And(moves, stays) : stays, sum, level);
    after.push_back(Unsqueeze(next, {0}));
    sum = Where(is_full, level + sum, sum);
    moves = moves ? And(moves, is_full) : is_full;
  }
  if (b.refusal().empty()) b.SetOutput(0, Concat(after, 0));
}

void PairwiseSumBody(OpBody& b) {
  Expr sum = b.input(1);
  for (const auto& [level, is_full] : Levels(b)) sum = Where(is_full, level + sum, sum);
  if (b.refusal().empty()) b.SetOutput(0, sum);
}

void GlobalNormBody(OpBody& b) {
  Exprs squares;
  for (int i = 0; i < b.input_count(); ++i) {
    squares.push_back(
        Op("ReduceSumSquare", {Cast(b.input(i), DType::kFloat64)}, {{"keepdims", int64_t{0}}}));
  }
  b.SetOutput(0, Sqrt(Op("Sum", squares)));
}

}  // namespace
}  // namespace gradient

namespace {

// A scalar, of float64 for float64.
Status InferGlobalNorm(Graph&, Node* node) {
  const bool wide = node->input(0) != nullptr && node->input(0)->dtype() == DType::kFloat64;
  node->output(0)->set_type(ValueType::Tensor(wide ? DType::kFloat64 : DType::kFloat32, Shape{}));
  return {};
}

}  // namespace

// clang-format off
std::vector<OpDef> OptimizerOps() {
  return {
    // InPlaceAccumulator (buffer, value, reset[bool scalar]) -> buffer'  buffer' = reset ? value : buffer + value (in
    // place)
    {.op_type = "InPlaceAccumulator", .domain = kCaesuraDomain, .min_inputs = 3, .max_inputs = 3,
     .type_of_output = {0}, .body = gradient::AccumulatedBody},
    // AccumulatedSum (buffer, value, reset[bool scalar]) -> sum  the same, in memory of its own or in that of value
    {.op_type = "AccumulatedSum", .domain = kCaesuraDomain, .min_inputs = 3, .max_inputs = 3,
     .type_of_output = {0}, .body = gradient::AccumulatedBody},
    // PairwiseAccumulator (levels, value, index[int64 scalar]) -> levels'  adds value `index` of a sum to the levels
    // [levels, value's shape...]: level l holds the sum of 2^l values in a row, where bit l of the number of values so
    // far is set. Sums of equal length are summed, so that the order is a binary tree whatever the number of values
    // (in place)
    {.op_type = "PairwiseAccumulator", .domain = kCaesuraDomain, .min_inputs = 3, .max_inputs = 3,
     .type_of_output = {0}, .body = gradient::PairwiseAccumulatorBody},
    // PairwiseSum (levels, value, index) -> sum  the sum of all values, of which this is the last: in memory of its
    // own or in that of value; the levels stay as they are
    {.op_type = "PairwiseSum", .domain = kCaesuraDomain, .min_inputs = 3, .max_inputs = 3,
     .type_of_output = {1}, .body = gradient::PairwiseSumBody},
    // ClipScale (norm, factor[float64]) -> scale[float64]  attribute max_norm (float64 scalar tensor; absent: no
    // clipping). factor * min(1, max_norm / (factor * norm + 1e-6)), as torch.nn.utils.clip_grad_norm_ on gradients
    // times factor
    {.op_type = "ClipScale", .domain = kCaesuraDomain, .min_inputs = 2, .max_inputs = 2,
     .type_of_output = {1}, .body = gradient::ClipScaleBody},
    // RequireFinite (value, checked...) -> value'  value' = value, a copy; fails where one of `checked` (floating
    // scalars, called as the attribute `names` says) is not finite
    {.op_type = "RequireFinite", .domain = kCaesuraDomain, .min_inputs = 2, .max_inputs = INT_MAX,
     .type_of_output = {0}, .body_refusal = "it fails where a number is not finite, and no operator of ONNX can"},
    // GlobalNorm (gradients...) -> norm  sqrt of the sum of squares of all elements, float32 scalar (float64 for
    // float64), summed in float64
    {.op_type = "GlobalNorm", .domain = kCaesuraDomain, .max_inputs = INT_MAX, .infer = InferGlobalNorm,
     .body = gradient::GlobalNormBody},
    // Optimizer updates, one node a parameter group; every parameter of the group is an input and an output:
    // SgdUpdate, AdamUpdate, AdamWUpdate, NAdamUpdate, RAdamUpdate, AdamaxUpdate, AdagradUpdate, AdadeltaUpdate,
    // AsgdUpdate, RpropUpdate, LambUpdate, LionUpdate, RmspropUpdate (coefficients, step[int64], scale, parameters...,
    // gradients..., state 1..., state 2...) -> parameters'..., state 1'..., state 2'... attributes: count (number of
    // parameters) and the optimizer's coefficients as training/optimizer/optimizer.h's DescribeUpdate names them
    // (float64 scalar tensors, flags as ints); the states in its order. coefficients: the learning rate, a float64
    // scalar; or with the attributes fed (strings) and first (int) a float64 vector that has what `fed` names from
    // element `first` on; step_offset, where it is among these, is added to step. maximize: 1 takes each gradient times
    // -1. scale is a float64 scalar, step (with its offset) counts from 1. All outputs are in place. `scale` multiplies
    // every gradient first (clipping, loss scaling, accumulation).
    {.op_type = "SgdUpdate", .domain = kCaesuraDomain, .min_inputs = 4, .max_inputs = INT_MAX,
     .max_outputs = INT_MAX, .body = gradient::UpdateBody},
    {.op_type = "AdamUpdate", .domain = kCaesuraDomain, .min_inputs = 4, .max_inputs = INT_MAX,
     .max_outputs = INT_MAX, .body = gradient::UpdateBody},
    {.op_type = "AdamWUpdate", .domain = kCaesuraDomain, .min_inputs = 4, .max_inputs = INT_MAX,
     .max_outputs = INT_MAX, .body = gradient::UpdateBody},
    {.op_type = "NAdamUpdate", .domain = kCaesuraDomain, .min_inputs = 4, .max_inputs = INT_MAX,
     .max_outputs = INT_MAX, .body = gradient::UpdateBody},
    {.op_type = "RAdamUpdate", .domain = kCaesuraDomain, .min_inputs = 4, .max_inputs = INT_MAX,
     .max_outputs = INT_MAX, .body = gradient::UpdateBody},
    {.op_type = "AdamaxUpdate", .domain = kCaesuraDomain, .min_inputs = 4, .max_inputs = INT_MAX,
     .max_outputs = INT_MAX, .body = gradient::UpdateBody},
    {.op_type = "AdagradUpdate", .domain = kCaesuraDomain, .min_inputs = 4, .max_inputs = INT_MAX,
     .max_outputs = INT_MAX, .body = gradient::UpdateBody},
    {.op_type = "AdadeltaUpdate", .domain = kCaesuraDomain, .min_inputs = 4, .max_inputs = INT_MAX,
     .max_outputs = INT_MAX, .body = gradient::UpdateBody},
    {.op_type = "AsgdUpdate", .domain = kCaesuraDomain, .min_inputs = 4, .max_inputs = INT_MAX,
     .max_outputs = INT_MAX, .body = gradient::UpdateBody},
    {.op_type = "RpropUpdate", .domain = kCaesuraDomain, .min_inputs = 4, .max_inputs = INT_MAX,
     .max_outputs = INT_MAX, .body = gradient::UpdateBody},
    {.op_type = "LambUpdate", .domain = kCaesuraDomain, .min_inputs = 4, .max_inputs = INT_MAX,
     .max_outputs = INT_MAX, .body = gradient::UpdateBody},
    {.op_type = "LionUpdate", .domain = kCaesuraDomain, .min_inputs = 4, .max_inputs = INT_MAX,
     .max_outputs = INT_MAX, .body = gradient::UpdateBody},
    {.op_type = "RmspropUpdate", .domain = kCaesuraDomain, .min_inputs = 4, .max_inputs = INT_MAX,
     .max_outputs = INT_MAX, .body = gradient::UpdateBody},
  };
}
// clang-format on

}  // namespace caesura
