// SPDX-License-Identifier: Apache-2.0
// Ops that no gradient flows through: their outputs are whole numbers, choices or shapes, or do not
// depend on the inputs' values. A step (Floor) has the gradient zero wherever it has one. Detach is
// Identity without a gradient.
#include "training/gradient/gradient_rules.h"

namespace caesura::gradient {

std::vector<GradientRule> StopRules() {
  std::vector<GradientRule> out;
  for (const char* op_type : {"Ceil",
                              "Floor",
                              "Hardmax",
                              "Round",
                              "Sign",  // steps
                              "ArgMax",
                              "ArgMin",
                              "NonMaxSuppression",
                              "NonZero",  // positions
                              "Equal",
                              "Greater",
                              "GreaterOrEqual",
                              "IsInf",
                              "IsNaN",
                              "Less",
                              "LessOrEqual",  // truth values
                              "And",
                              "Not",
                              "Or",
                              "Xor",
                              "OptionalHasElement",
                              "Constant",
                              "ConstantOfShape",
                              "EyeLike",
                              "SequenceEmpty",
                              "SequenceLength",
                              "Shape",
                              "Size",  // no values
                              "Bernoulli",
                              "Multinomial",
                              "RandomNormal",
                              "RandomNormalLike",
                              "RandomUniform",
                              "RandomUniformLike"}) {
    GradientRule rule;
    rule.op_type = op_type;
    out.push_back(std::move(rule));
  }
  GradientRule detach;
  detach.op_type = "Detach";
  detach.domain = kCaesuraDomain;
  out.push_back(std::move(detach));
  return out;
}

}  // namespace caesura::gradient
