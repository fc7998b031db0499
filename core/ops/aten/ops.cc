// SPDX-License-Identifier: Apache-2.0
// The rows of operators of PyTorch (core/graph/op_def.h), and their gradient rules.
#include <climits>
#include <vector>

#include "core/gradient/gradient_rules.h"
#include "core/graph/aten_domain.h"
#include "core/graph/op_def.h"

namespace caesura {
namespace gradient {
namespace {

// Y = f(X)
// dX = f'(X)^T dY, by PyTorch
void AtenRule(GradientContext& g) {
  std::vector<Value*> inputs, outputs;
  std::vector<int64_t> from, to;
  for (int i = 0; i < g.output_count(); ++i) {
    const Expr dy = g.IsOnPath(i) ? g.dY(i) : Expr();
    if (!dy) continue;
    from.push_back(i);
    inputs.push_back(dy.value());
  }
  for (int i = 0; i < g.input_count(); ++i) {
    inputs.push_back(g.input(i).value());
    if (!g.Needs(i)) continue;
    to.push_back(i);
    outputs.push_back(g.writer().FreshValue(kAtenGradOp, g.input(i).value()->type()));
  }
  AttributeMap attributes = g.attributes();
  attributes["gradient_outputs"] = from;
  attributes["gradient_inputs"] = to;
  g.writer().AddWithOutputs(kAtenGradOp, std::move(inputs), outputs, std::move(attributes),
                            kAtenDomain);
  for (size_t k = 0; k < to.size(); ++k)
    g.SetInputGradient(static_cast<int>(to[k]), g.Wrap(outputs[k]));
}

}  // namespace
}  // namespace gradient

// clang-format off
std::vector<OpDef> AtenOps() {
  return {
    {.op_type = kAtenOp, .domain = kAtenDomain, .min_inputs = 0, .max_inputs = INT_MAX, .min_outputs = 0,
     .max_outputs = INT_MAX, .rule = {.function = gradient::AtenRule}, .body_refusal = "PyTorch alone computes it"},
  };
}
// clang-format on

}  // namespace caesura
