// SPDX-License-Identifier: Apache-2.0
// The rows of random draws (core/graph/op_def.h), and their gradient rules.
#include <cmath>
#include <vector>

#include "core/gradient/gradient_rules.h"
#include "core/graph/op_def.h"
#include "core/ops/op_bodies.h"

namespace caesura {
namespace gradient {
namespace {

// Y = X mask / (1 - ratio) in training, else X;  dX = dY mask / (1 - ratio), else dY
void DropoutRule(GradientContext& g) {
  const Tensor* mode = g.ConstantInput(2);
  if (!g.HasInput(2) || (mode != nullptr && !*mode->data<bool>()))
    return g.SetInputGradient(0, g.dY());
  ValueType mask_type = g.input(0).value()->type();
  mask_type.dtype = DType::kBool;
  const Expr ratio = g.HasInput(1) ? g.input(1) : Number(0.5, g.dY());
  const Expr dropped = TrainingOp("DropoutGrad", {g.dY(), g.EnsureOutput(1, mask_type), ratio});
  g.SetInputGradient(0, mode != nullptr ? dropped : Where(g.input(2), dropped, g.dY()));
}

// D = dY mask / (1 - ratio);  ddY = G mask / (1 - ratio)
void DropoutGradRule(GradientContext& g) {
  g.SetInputGradient(0, TrainingOp("DropoutGrad", {g.dY(), g.input(1), g.input(2)}));
}

}  // namespace
}  // namespace gradient

// clang-format off
std::vector<OpDef> RandomOps() {
  using Derivative = OpDef::Derivative;
  return {
    {.op_type = "Bernoulli", .random = true, .derivative = Derivative::kZero,
     .derivative_note = "a random draw: zero"},
    {.op_type = "Dropout", .random = true, .half_inputs = 1,
     .rule = {.function = gradient::DropoutRule, .stops = {1, 2}}, .body = gradient::DropoutBody},
    {.op_type = "Multinomial", .random = true, .derivative = Derivative::kZero},
    {.op_type = "RandomNormal", .random = true, .derivative = Derivative::kZero},
    {.op_type = "RandomNormalLike", .random = true, .derivative = Derivative::kZero,
     .derivative_note = "the shape only: zero"},
    {.op_type = "RandomUniform", .random = true, .derivative = Derivative::kZero},
    {.op_type = "RandomUniformLike", .random = true, .derivative = Derivative::kZero,
     .derivative_note = "the shape only: zero"},
    // DropoutGrad (dY, mask[bool], ratio) -> dX  dX = dY * mask / (1 - ratio)
    {.op_type = "DropoutGrad", .domain = kCaesuraDomain, .min_inputs = 3, .max_inputs = 3,
     .type_of_output = {0}, .device_rows = true,
     .rule = {.function = gradient::DropoutGradRule, .stops = {1, 2}}, .body = gradient::DropoutGradBody},
  };
}
// clang-format on

}  // namespace caesura
