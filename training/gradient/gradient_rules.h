// SPDX-License-Identifier: Apache-2.0
// Gradient rules: for each op type a short function that turns output gradients into input
// gradients. The driver (gradient_builder.h) does all the rest: which inputs need one, sums over
// broadcast axes, accumulation, casts, dead nodes. To add a rule: write the function in the file of
// its family, two lines of mathematics above it, list it in that file's table, and give it a row in
// gradient_table.cc and a case in tests/gradients.
//
//   // Y = sin X
//   // dX = dY cos X
//   void Sin(GradientContext& g) { g.SetInputGradient(0, g.dY() * Cos(g.input(0))); }
#ifndef CAESURA_TRAINING_GRADIENT_GRADIENT_RULES_H_
#define CAESURA_TRAINING_GRADIENT_GRADIENT_RULES_H_

#include <climits>
#include <string>
#include <vector>

#include "training/gradient/gradient_context.h"

namespace caesura::gradient {

struct GradientRule {
  std::string op_type;
  // Null: the op's gradient is zero wherever it exists (Floor), or nothing differentiable flows
  // through it (Shape).
  void (*function)(GradientContext&) = nullptr;
  std::string domain = "";
  // Inputs broadcast against each other: the driver sums each gradient to its input's shape.
  bool broadcasts = false;
  // Inputs whose gradient is zero or that are no numbers (indices, shapes). -1 - i: input i and all
  // after it.
  std::vector<int> stops = {};
  // Inputs that have a gradient which the rule does not compute: an error where one is needed,
  // never silence.
  std::vector<int> refuses = {};
  // Outputs from this index on carry no gradient back: an error where one arrives.
  int outputs = INT_MAX;
  // If given and false for a node, the node is replaced by its function body, which is
  // differentiated instead.
  bool (*applies)(const GradientContext&) = nullptr;
};

// Null when there is no rule.
const GradientRule* FindGradientRule(const std::string& op_type, const std::string& domain = "");
// The same; for an op of a session's own (OpSchemaSet) the rule that calls its gradient hook.
const GradientRule* FindGradientRule(const Node& node);
// All rules, by family and in the order of their tables.
const std::vector<GradientRule>& AllGradientRules();

// The tables, one a family: each in the source file of its name.
std::vector<GradientRule> ElementwiseRules();    // rules/elementwise.cc
std::vector<GradientRule> ActivationRules();     // rules/activation.cc
std::vector<GradientRule> MatMulRules();         // rules/matmul.cc
std::vector<GradientRule> EinsumRules();         // rules/einsum.cc
std::vector<GradientRule> MovementRules();       // rules/movement.cc
std::vector<GradientRule> IndexingRules();       // rules/indexing.cc
std::vector<GradientRule> ReductionRules();      // rules/reduction.cc
std::vector<GradientRule> NnRules();             // rules/nn.cc: conv, pool, loss, recurrent
std::vector<GradientRule> NormalizationRules();  // rules/normalization.cc: softmax, norms, dropout
std::vector<GradientRule> AttentionRules();      // rules/attention.cc
std::vector<GradientRule> ImageRules();          // rules/image.cc: resampling, regions
std::vector<GradientRule> QuantizeRules();       // rules/quantize.cc
std::vector<GradientRule> SignalRules();         // rules/signal.cc: DFT, STFT
std::vector<GradientRule> SequenceRules();       // rules/sequence.cc: sequences and optionals
std::vector<GradientRule> ControlFlowRules();    // rules/control_flow.cc: If, Loop, Scan
std::vector<GradientRule> TrainingOpRules();     // rules/training_ops.cc: gradients of gradients
std::vector<GradientRule> AtenRules();           // rules/aten.cc: operators of PyTorch
const GradientRule& HookRule();             // rules/hook.cc: the one for ops with a gradient hook
std::vector<GradientRule> OwnRules();       // rules/own.cc: gradients that the model has itself
std::vector<GradientRule> ExchangeRules();  // rules/exchange.cc: between the ranks of a step
std::vector<GradientRule> StopRules();      // rules/stop.cc: what no gradient flows through

}  // namespace caesura::gradient

#endif  // CAESURA_TRAINING_GRADIENT_GRADIENT_RULES_H_
