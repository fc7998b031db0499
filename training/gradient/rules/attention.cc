// SPDX-License-Identifier: Apache-2.0
// Gradient rules of attention and of what stands around it.
#include "training/gradient/gradient_rules.h"
#include "training/kernels/training_ops.h"

namespace caesura::gradient {
namespace {

constexpr int kLogSumExp = 4;  // output of AttentionTraining

// P = softmax(Q K^T + M), Y = P V;  dV = P^T dY, dS = softmax' (dY V^T), dQ = dS K, dK = dS^T Q, dM
// = dS
void AttentionRule(GradientContext& g) {
  Exprs inputs = {g.dY(), g.input(0), g.input(1), g.input(2), g.input(3)};
  if (g.FloatAttr("softcap", 0) <= 0 && !g.Needs(3)) {  // the kernel's fast way
    const bool wide = g.input(0).dtype() == DType::kFloat64;
    inputs.push_back(g.output());
    inputs.push_back(g.TrainingOutput("AttentionTraining", kLogSumExp,
                                      ValueType::Tensor(wide ? DType::kFloat64 : DType::kFloat32)));
  }
  g.SetInputGradients("AttentionGrad", inputs, {0, 1, 2, 3}, g.attributes());
}

// The kernel's form: no cache, and only Y differentiated. All else through the function body.
bool IsPlainAttention(const GradientContext& g) {
  return !g.HasInput(4) && !g.HasInput(5) && !g.HasInput(6) && !g.Leads(1) && !g.Leads(2) &&
         !g.Leads(3);
}

// Y = X rotated by an angle;  dX = dY rotated back: the same with -sin
void RotaryEmbeddingRule(GradientContext& g) {
  g.SetInputGradient(
      0, Op("RotaryEmbedding", {g.dY(), g.input(1), -g.input(2), g.input(3)}, g.attributes()));
}

bool AnglesAreFixed(const GradientContext& g) { return !g.Needs(1) && !g.Needs(2); }

}  // namespace

std::vector<GradientRule> AttentionRules() {
  return {
      {.op_type = "Attention", .function = AttentionRule, .applies = IsPlainAttention},
      {.op_type = "AttentionTraining",
       .function = AttentionRule,
       .domain = kTrainingDomain,
       .applies = IsPlainAttention},
      {.op_type = "RotaryEmbedding",
       .function = RotaryEmbeddingRule,
       .stops = {3},
       .applies = AnglesAreFixed},
  };
}

}  // namespace caesura::gradient
