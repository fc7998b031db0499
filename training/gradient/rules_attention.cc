// SPDX-License-Identifier: Apache-2.0
// Gradient rules of attention and of what stands around it.
#include "training/gradient/gradient_rules.h"

namespace caesura::gradient {
namespace {

// P = softmax(Q K^T + M), Y = P V;  dV = P^T dY, dS = softmax' (dY V^T), dQ = dS K, dK = dS^T Q, dM = dS
void AttentionRule(GradientContext& g) {
  const Exprs inputs = {g.dY(), g.input(0), g.input(1), g.input(2), g.input(3)};
  g.SetInputGradients("AttentionGrad", inputs, {0, 1, 2, 3}, g.attributes());
}

// The kernel's form: no cache, and only Y differentiated. All else through the function body.
bool IsPlainAttention(const GradientContext& g) {
  return !g.HasInput(4) && !g.HasInput(5) && !g.HasInput(6) && !g.Leads(1) && !g.Leads(2) && !g.Leads(3);
}

// Y = X rotated by an angle;  dX = dY rotated back: the same with -sin
void RotaryEmbeddingRule(GradientContext& g) {
  g.SetInputGradient(0, Op("RotaryEmbedding", {g.dY(), g.input(1), -g.input(2), g.input(3)}, g.attributes()));
}

bool AnglesAreFixed(const GradientContext& g) { return !g.Needs(1) && !g.Needs(2); }

}  // namespace

std::vector<GradientRule> AttentionRules() {
  return {
      {.op_type = "Attention", .function = AttentionRule, .applies = IsPlainAttention},
      {.op_type = "RotaryEmbedding", .function = RotaryEmbeddingRule, .stops = {3}, .applies = AnglesAreFixed},
  };
}

}  // namespace caesura::gradient
