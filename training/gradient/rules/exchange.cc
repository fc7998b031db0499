// SPDX-License-Identifier: Apache-2.0
// Gradient rules of the exchanges between the ranks of a step. What is differentiated is the sum of
// all ranks' losses, so a rank's dX is what all ranks make of its X.
#include "training/gradient/gradient_rules.h"
#include "training/kernels/training_ops.h"

namespace caesura::gradient {
namespace {

// Y = the sum of all X
// dX = the sum of all dY
void AllReduceRule(GradientContext& g) {
  g.SetInputGradient(0, TrainingOp("AllReduce", {g.dY()}, g.Attributes({"ranks"})));
}

// Y = all X, one after the other
// dX = this rank's part of the sum of all dY
void AllGatherRule(GradientContext& g) {
  g.SetInputGradient(0, TrainingOp("ReduceScatter", {g.dY()}, g.Attributes({"ranks"})));
}

// Y = this rank's part of the sum of all X
// dX = all dY, one after the other
void ReduceScatterRule(GradientContext& g) {
  g.SetInputGradient(0, TrainingOp("AllGather", {g.dY()}, g.Attributes({"ranks"})));
}

// part s of rank r's X is part r of rank s's Y
// part s of rank r's dX is part r of rank s's dY
void AllToAllRule(GradientContext& g) {
  g.SetInputGradient(0, TrainingOp("AllToAll", {g.dY()}, g.Attributes({"ranks"})));
}

}  // namespace

std::vector<GradientRule> ExchangeRules() {
  return {
      {.op_type = "AllReduce", .function = AllReduceRule, .domain = kTrainingDomain},
      {.op_type = "AllGather", .function = AllGatherRule, .domain = kTrainingDomain},
      {.op_type = "ReduceScatter", .function = ReduceScatterRule, .domain = kTrainingDomain},
      {.op_type = "AllToAll", .function = AllToAllRule, .domain = kTrainingDomain},
  };
}

}  // namespace caesura::gradient
