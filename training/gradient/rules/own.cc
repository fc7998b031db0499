// SPDX-License-Identifier: Apache-2.0
// The gradient rule of WithGradient: values whose gradient the model says itself, as an
// autograd.Function's backward does.
#include "training/gradient/body_gradient.h"
#include "training/gradient/gradient_rules.h"

namespace caesura::gradient {
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

}  // namespace

std::vector<GradientRule> OwnRules() {
  GradientRule rule;
  rule.op_type = "WithGradient";
  rule.domain = kCaesuraDomain;
  rule.function = WithGradientRule;
  return {rule};
}

}  // namespace caesura::gradient
