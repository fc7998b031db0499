// SPDX-License-Identifier: Apache-2.0
// The rows of elementwise ops without a rule (core/graph/op_def.h).
#include <climits>
#include <utility>
#include <vector>

#include "core/base/status_macros.h"
#include "core/gradient/op_body.h"
#include "core/graph/op_def.h"
#include "core/ops/infer_types.h"

namespace caesura {
namespace gradient {
namespace {

void CastAllBody(OpBody& b) {
  for (int i = 0; i < b.output_count(); ++i)
    b.SetOutput(i, Cast(b.input(i), static_cast<DType>(b.IntAttr("to", 0))));
}

}  // namespace
}  // namespace gradient

namespace {

// Output i has the shape of input i, and the dtype that the attribute says.
Status InferCastAll(Graph& graph, Node* node) {
  RETURN_IF_ERROR(SameTypes(graph, node));
  for (Value* output : node->outputs()) {
    if (output == nullptr || !output->type().is_tensor()) continue;
    ValueType type = output->type();
    type.dtype = static_cast<DType>(node->Attr<int64_t>("to", 0));
    output->set_type(std::move(type));
  }
  return {};
}

}  // namespace

// clang-format off
std::vector<OpDef> ElementwiseOps() {
  using Derivative = OpDef::Derivative;
  return {
    {.op_type = "And", .elementwise = true, .result = DType::kBool, .derivative = Derivative::kZero},
    {.op_type = "BitCast", .derivative = Derivative::kRefusal,
     .derivative_note = "bits under another type: not a function of numbers"},
    {.op_type = "Ceil", .elementwise = true, .derivative = Derivative::kZero,
     .derivative_note = "a step: zero"},
    {.op_type = "DynamicQuantizeLinear", .derivative = Derivative::kBody,
     .derivative_note = "y_scale, through the function body; the whole numbers y carry none"},
    {.op_type = "Equal", .elementwise = true, .result = DType::kBool, .derivative = Derivative::kZero},
    {.op_type = "Floor", .elementwise = true, .derivative = Derivative::kZero,
     .derivative_note = "a step: zero"},
    {.op_type = "Greater", .elementwise = true, .result = DType::kBool, .derivative = Derivative::kZero},
    {.op_type = "GreaterOrEqual", .elementwise = true, .result = DType::kBool,
     .derivative = Derivative::kZero},
    {.op_type = "IsInf", .elementwise = true, .result = DType::kBool, .derivative = Derivative::kZero},
    {.op_type = "IsNaN", .elementwise = true, .result = DType::kBool, .derivative = Derivative::kZero},
    {.op_type = "Less", .elementwise = true, .result = DType::kBool, .derivative = Derivative::kZero},
    {.op_type = "LessOrEqual", .elementwise = true, .result = DType::kBool, .derivative = Derivative::kZero},
    {.op_type = "Not", .elementwise = true, .result = DType::kBool, .derivative = Derivative::kZero},
    {.op_type = "Or", .elementwise = true, .result = DType::kBool, .derivative = Derivative::kZero},
    {.op_type = "Round", .elementwise = true, .derivative = Derivative::kZero,
     .derivative_note = "a step: zero"},
    {.op_type = "Sign", .elementwise = true, .derivative = Derivative::kZero,
     .derivative_note = "a step: zero"},
    {.op_type = "Xor", .elementwise = true, .derivative = Derivative::kZero},
    // CastAll (X...) -> Y...  Y i is X i, of a floating type, as the floating type `to`; in memory of its own. Made by
    // cast_grouping
    {.op_type = "CastAll", .domain = kCaesuraDomain, .max_inputs = INT_MAX, .max_outputs = INT_MAX,
     .infer = InferCastAll, .body = gradient::CastAllBody},
  };
}
// clang-format on

}  // namespace caesura
