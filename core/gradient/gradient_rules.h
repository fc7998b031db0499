// SPDX-License-Identifier: Apache-2.0
// Gradient rules: for each op type a short function that turns output gradients into input
// gradients. The driver (gradient_builder.h) does all the rest: which inputs need one, sums over
// broadcast axes, accumulation, casts, dead nodes. A rule stands beside its op's row (OpDef::rule)
// in core/ops, with two lines of mathematics above it, and has a case in tests/gradients.
//
//   // Y = sin X
//   // dX = dY cos X
//   void Sin(GradientContext& g) { g.SetInputGradient(0, g.dY() * Cos(g.input(0))); }
#ifndef CAESURA_CORE_GRADIENT_GRADIENT_RULES_H_
#define CAESURA_CORE_GRADIENT_GRADIENT_RULES_H_

#include <string>

#include "core/gradient/gradient_context.h"
#include "core/graph/op_def.h"

namespace caesura::gradient {

// Null when there is no rule.
const GradientRule* FindGradientRule(const std::string& op_type, const std::string& domain = "");
// The rule of a node's op, null when there is none; for an op of a session's own (OpDefSet) the
// rule that calls its gradient hook.
const GradientRule* FindGradientRule(const Node& node);
// The one for ops with a gradient hook.
const GradientRule& HookRule();

}  // namespace caesura::gradient

#endif  // CAESURA_CORE_GRADIENT_GRADIENT_RULES_H_
