// SPDX-License-Identifier: Apache-2.0
#include "core/gradient/gradient_rules.h"

namespace caesura::gradient {

const GradientRule* FindGradientRule(const std::string& op_type, const std::string& domain) {
  const OpDef& op = OpDefOf(op_type, domain);
  const bool has_rule = op.rule.has_gradient() || op.derivative == OpDef::Derivative::kZero;
  return has_rule ? &op.rule : nullptr;
}

const GradientRule* FindGradientRule(const Node& node) {
  const OpDef* own = FindOwnOp(node);
  return own != nullptr && own->gradient ? &HookRule()
                                         : FindGradientRule(node.op_type(), node.domain());
}

}  // namespace caesura::gradient
