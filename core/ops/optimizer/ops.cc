// SPDX-License-Identifier: Apache-2.0
// The rows of the optimizers and sums of gradients (core/graph/op_def.h).
#include <climits>
#include <vector>

#include "core/graph/op_def.h"

namespace caesura {
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
     .type_of_output = {0}},
    // AccumulatedSum (buffer, value, reset[bool scalar]) -> sum  the same, in memory of its own or in that of value
    {.op_type = "AccumulatedSum", .domain = kCaesuraDomain, .min_inputs = 3, .max_inputs = 3,
     .type_of_output = {0}},
    // PairwiseAccumulator (levels, value, index[int64 scalar]) -> levels'  adds value `index` of a sum to the levels
    // [levels, value's shape...]: level l holds the sum of 2^l values in a row, where bit l of the number of values so
    // far is set. Sums of equal length are summed, so that the order is a binary tree whatever the number of values
    // (in place)
    {.op_type = "PairwiseAccumulator", .domain = kCaesuraDomain, .min_inputs = 3, .max_inputs = 3,
     .type_of_output = {0}},
    // PairwiseSum (levels, value, index) -> sum  the sum of all values, of which this is the last: in memory of its
    // own or in that of value; the levels stay as they are
    {.op_type = "PairwiseSum", .domain = kCaesuraDomain, .min_inputs = 3, .max_inputs = 3,
     .type_of_output = {1}},
    // ClipScale (norm, factor[float64]) -> scale[float64]  attribute max_norm (float64 scalar tensor; absent: no
    // clipping). factor * min(1, max_norm / (factor * norm + 1e-6)), as torch.nn.utils.clip_grad_norm_ on gradients
    // times factor
    {.op_type = "ClipScale", .domain = kCaesuraDomain, .min_inputs = 2, .max_inputs = 2,
     .type_of_output = {1}},
    // RequireFinite (value, checked...) -> value'  value' = value, a copy; fails where one of `checked` (floating
    // scalars, called as the attribute `names` says) is not finite
    {.op_type = "RequireFinite", .domain = kCaesuraDomain, .min_inputs = 2, .max_inputs = INT_MAX,
     .type_of_output = {0}},
    // GlobalNorm (gradients...) -> norm  sqrt of the sum of squares of all elements, float32 scalar (float64 for
    // float64), summed in float64
    {.op_type = "GlobalNorm", .domain = kCaesuraDomain, .max_inputs = INT_MAX, .infer = InferGlobalNorm},
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
     .max_outputs = INT_MAX},
    {.op_type = "AdamUpdate", .domain = kCaesuraDomain, .min_inputs = 4, .max_inputs = INT_MAX,
     .max_outputs = INT_MAX},
    {.op_type = "AdamWUpdate", .domain = kCaesuraDomain, .min_inputs = 4, .max_inputs = INT_MAX,
     .max_outputs = INT_MAX},
    {.op_type = "NAdamUpdate", .domain = kCaesuraDomain, .min_inputs = 4, .max_inputs = INT_MAX,
     .max_outputs = INT_MAX},
    {.op_type = "RAdamUpdate", .domain = kCaesuraDomain, .min_inputs = 4, .max_inputs = INT_MAX,
     .max_outputs = INT_MAX},
    {.op_type = "AdamaxUpdate", .domain = kCaesuraDomain, .min_inputs = 4, .max_inputs = INT_MAX,
     .max_outputs = INT_MAX},
    {.op_type = "AdagradUpdate", .domain = kCaesuraDomain, .min_inputs = 4, .max_inputs = INT_MAX,
     .max_outputs = INT_MAX},
    {.op_type = "AdadeltaUpdate", .domain = kCaesuraDomain, .min_inputs = 4, .max_inputs = INT_MAX,
     .max_outputs = INT_MAX},
    {.op_type = "AsgdUpdate", .domain = kCaesuraDomain, .min_inputs = 4, .max_inputs = INT_MAX,
     .max_outputs = INT_MAX},
    {.op_type = "RpropUpdate", .domain = kCaesuraDomain, .min_inputs = 4, .max_inputs = INT_MAX,
     .max_outputs = INT_MAX},
    {.op_type = "LambUpdate", .domain = kCaesuraDomain, .min_inputs = 4, .max_inputs = INT_MAX,
     .max_outputs = INT_MAX},
    {.op_type = "LionUpdate", .domain = kCaesuraDomain, .min_inputs = 4, .max_inputs = INT_MAX,
     .max_outputs = INT_MAX},
    {.op_type = "RmspropUpdate", .domain = kCaesuraDomain, .min_inputs = 4, .max_inputs = INT_MAX,
     .max_outputs = INT_MAX},
  };
}
// clang-format on

}  // namespace caesura
