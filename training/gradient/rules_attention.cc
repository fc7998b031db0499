// SPDX-License-Identifier: Apache-2.0
// Gradient rules of attention and of what stands around it.
#include "training/gradient/gradient_rules.h"
#include "training/kernels/training_ops.h"

namespace caesura::gradient {
namespace {

constexpr int kLogSumExp = 4;  // output of AttentionTraining

// The forward op's lse. AttentionTraining takes the place of an Attention, which is left without outputs.
Expr LogSumExp(GradientContext& g) {
  const bool wide = g.input(0).dtype() == DType::kFloat64;
  const ValueType type = ValueType::Tensor(wide ? DType::kFloat64 : DType::kFloat32);
  Node& node = g.mutable_node();
  if (node.Is("AttentionTraining", kTrainingDomain)) return g.EnsureOutput(kLogSumExp, type);
  Graph& graph = *node.graph();
  std::vector<Value*> outputs = graph.ReleaseOutputs(&node);
  outputs.resize(kLogSumExp, nullptr);
  outputs.push_back(graph.AddValue(graph.UniqueName(node.name() + "/lse"), type));
  const size_t last = graph.nodes().size();
  Node* training = graph.AddNode("AttentionTraining", node.inputs(), outputs, node.attributes(), kTrainingDomain,
                                 graph.UniqueName(node.name() + "/training"));
  training->set_phase(node.phase());
  training->set_source(node.source());
  training->set_provider(node.provider());
  training->set_since_version(1);
  graph.MoveTailBefore(last, &node);
  return g.Wrap(outputs[kLogSumExp]);
}

// P = softmax(Q K^T + M), Y = P V;  dV = P^T dY, dS = softmax' (dY V^T), dQ = dS K, dK = dS^T Q, dM = dS
void AttentionRule(GradientContext& g) {
  Exprs inputs = {g.dY(), g.input(0), g.input(1), g.input(2), g.input(3)};
  if (g.FloatAttr("softcap", 0) <= 0 && !g.Needs(3)) {  // the kernel's fast way
    const Expr y = g.output();
    inputs.insert(inputs.end(), {y, LogSumExp(g)});
  }
  g.SetInputGradients("AttentionGrad", inputs, {0, 1, 2, 3}, g.attributes());
  Node& node = g.mutable_node();
  if (node.outputs().empty()) node.graph()->RemoveNode(&node);  // nothing reads it from here on
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
      {.op_type = "AttentionTraining", .function = AttentionRule, .domain = kTrainingDomain,
       .applies = IsPlainAttention},
      {.op_type = "RotaryEmbedding", .function = RotaryEmbeddingRule, .stops = {3}, .applies = AnglesAreFixed},
  };
}

}  // namespace caesura::gradient
