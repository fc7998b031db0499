// SPDX-License-Identifier: Apache-2.0
#include "core/gradient/function_gradient.h"

#include "core/gradient/gradient_builder.h"
#include "core/onnx/function_body.h"

namespace caesura::gradient {

Exprs FunctionGradient(GradientContext& g, const std::string& op_type, const Exprs& inputs,
                       Expr dy) {
  NodeWriter& writer = g.writer();
  GradientOptions options;
  std::vector<Value*> copies;  // one input may be computed from another one
  for (const Expr& input : inputs) {
    Value* copy = input ? writer.Add("Identity", {input.value()})->output(0) : nullptr;
    copies.push_back(copy);
    if (copy == nullptr) continue;
    copy->set_type(input.value()->type());
    if (MayCarryGradient(copy->type())) options.xs.push_back(copy);
  }
  Node* node = writer.Add(op_type, copies, g.attributes());
  node->output(0)->set_type(dy.value()->type());
  // The body leaves out what nobody reads.
  Value* y = writer.Add("Identity", {node->output(0)})->output(0);
  y->set_type(dy.value()->type());
  options.ys = {{y, dy.value()}};
  const Result<bool> expanded = ExpandFunctionBody(writer.graph(), node);
  const Status status = expanded.status();
  if (!status.ok() || !*expanded) {
    g.Refuse("has no second derivative: " +
             (status.ok() ? op_type + " has no function body" : status.message()));
    return {};
  }
  const Result<GradientGraph> built = BuildGradient(writer.graph(), options);
  if (!built.ok()) {
    g.Refuse("has no second derivative: " + built.status().message());
    return {};
  }
  Exprs out;
  size_t next = 0;
  for (Value* copy : copies) {
    const bool has_gradient = copy != nullptr && MayCarryGradient(copy->type());
    out.push_back(has_gradient ? g.Wrap(built->dxs[next++]) : Expr());
  }
  return out;
}

}  // namespace caesura::gradient
