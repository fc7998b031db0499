// SPDX-License-Identifier: Apache-2.0
// The rows of the parts of a training step (core/graph/op_def.h), and their gradient rules.
#include <algorithm>
#include <climits>
#include <cmath>
#include <utility>
#include <vector>

#include "core/gradient/body_gradient.h"
#include "core/gradient/gradient_rules.h"
#include "core/gradient/op_body.h"
#include "core/graph/op_def.h"
#include "core/ops/infer_types.h"

namespace caesura {
namespace gradient {
namespace {

// Y_i = input i
// dX = gradient(dY, the inputs after the values)
void WithGradientRule(GradientContext& g) {
  const auto of = g.Attr<std::vector<int64_t>>("gradient_inputs", {});
  bool fits = g.node().FindAttr<std::shared_ptr<Graph>>("gradient") != nullptr &&
              g.output_count() <= g.input_count();
  for (int i = 0; i < g.input_count(); ++i) fits = fits && g.HasInput(i);
  for (const int64_t i : of) fits = fits && i >= g.output_count() && i < g.input_count();
  if (!fits)
    return g.Refuse(
        "needs a graph `gradient`, all its inputs, one for each output, and gradient_inputs among "
        "the others");
  const Graph& body = BodyOf(g, "gradient");
  if (body.inputs().size() != static_cast<size_t>(g.input_count()) ||
      body.outputs().size() != of.size()) {
    return g.Refuse(
        "has a body of other inputs and outputs than gradient_inputs and its own inputs say");
  }
  ValueMap bindings;
  for (int i = 0; i < g.input_count(); ++i) {
    const Expr dy = i < g.output_count() ? g.dY(i) : g.input(i);
    bindings[body.inputs()[i]] = (dy ? dy : ZerosLike(g.input(i))).value();
  }
  const std::vector<Value*> dxs = CopyBody(body, g.writer(), std::move(bindings));
  for (size_t k = 0; k < dxs.size(); ++k)
    g.SetInputGradient(static_cast<int>(of[k]), g.Wrap(dxs[k]));
}

// A yield that takes back what it hands out passes gradients through
void YieldRule(GradientContext& g) {
  if (g.IntAttr("identity", 0) == 0)
    return g.Refuse("hands values out and takes gradients in: it cannot be differentiated");
  for (int i = 0; i < g.input_count(); ++i) g.SetInputGradient(i, g.dY(i));
}

// Y_i = input i
void PassBody(OpBody& b) {
  for (int i = 0; i < b.output_count(); ++i) b.SetOutput(i, b.input(i));
}
void AssignBody(OpBody& b) { b.SetOutput(0, b.input(1)); }

}  // namespace
}  // namespace gradient

namespace {

// A value that is handed out comes back as a gradient of its type; of its shape only where
// `full_shape_outputs` says so, or where the values themselves come back (`identity`).
Status InferYield(Graph&, Node* node) {
  const auto full = node->Attr<std::vector<int64_t>>("full_shape_outputs", {});
  const std::vector<int> of = DifferentiableInputs(*node);
  for (size_t k = 0; k < std::min(of.size(), node->outputs().size()); ++k) {
    Value* output = node->outputs()[k];
    if (output == nullptr || output->type().is_tensor()) continue;
    const ValueType& type = node->inputs()[of[k]]->type();
    const bool shaped = std::find(full.begin(), full.end(), of[k]) != full.end();
    output->set_type(
        {type.kind, type.dtype, type.key, shaped ? type.shape : std::nullopt, type.element});
  }
  return {};
}

}  // namespace

// clang-format off
std::vector<OpDef> StepOps() {
  using Derivative = OpDef::Derivative;
  return {
    // WithGradient (Y..., X...) -> Y...  Y as it came, with another gradient: that of X, by the graph of the attribute
    // `gradient`, (dY..., X...) -> dX...; gradient_inputs: ints, the node's input that each dX is of. Never executed
    {.op_type = "WithGradient", .domain = kCaesuraDomain, .max_inputs = 1024, .max_outputs = 256,
     .infer = SameTypes, .rule = {.function = gradient::WithGradientRule}, .body = gradient::PassBody},
    // Detach (X) -> Y  Y = X, and no gradient of Y reaches X
    {.op_type = "Detach", .domain = kCaesuraDomain, .type_of_output = {0}, .derivative = Derivative::kZero,
     .body = gradient::PassBody},
    // YieldOp (y...) -> dY of the differentiable ones  attributes: non_differentiable_outputs: ints,
    // full_shape_outputs: ints, names: strings (one a value that is handed out), released_inputs: strings
    // (update_order.h). Never executed: see core/execute.
    {.op_type = "YieldOp", .domain = kCaesuraDomain, .max_inputs = INT_MAX, .min_outputs = 0,
     .max_outputs = INT_MAX, .infer = InferYield, .is_deterministic = false,
     .rule = {.function = gradient::YieldRule},
     .body_refusal = "a run hands values out there and waits, and no operator of ONNX does"},
    // Assign (target, value, after?) -> target'  copies value into target, in place, once `after` is there, which is not
    // read: running statistics, counters. In a model, the target being an initializer: what a training step leaves
    // there (core/gradient/training_mode.h)
    {.op_type = "Assign", .domain = kCaesuraDomain, .min_inputs = 2, .max_inputs = 3, .type_of_output = {0},
     .body = gradient::AssignBody},
    // Copy (X) -> Y  Y = X, in memory of its own: never a view
    {.op_type = "Copy", .domain = kCaesuraDomain, .type_of_output = {0}, .body = gradient::PassBody},
  };
}
// clang-format on

}  // namespace caesura
