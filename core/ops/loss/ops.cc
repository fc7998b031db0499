// SPDX-License-Identifier: Apache-2.0
// The rows of losses (core/graph/op_def.h), and their gradient rules.
#include <utility>
#include <vector>

#include "core/gradient/gradient_rules.h"
#include "core/graph/op_def.h"
#include "core/ops/infer_types.h"
#include "core/ops/loss/loss_spec.h"

namespace caesura {
namespace gradient {
namespace {

// loss = -sum over rows of w log p[label] (/ sum of w);  dscores = dloss (p - one-hot) w (/ sum of
// w), with p = e^(scores - lse)
void SoftmaxCrossEntropyLossRule(GradientContext& g) {
  const Expr d_loss = g.dY(0), scores = g.input(0), labels = g.input(1);
  if (g.dY(1)) {
    g.SetInputGradient(
        0, TrainingOp("LogSoftmaxGrad", {g.dY(1), g.output(1)}, {{"axis", int64_t{1}}}));
  }
  if (!d_loss) return;
  ValueType type = labels.value()->type();
  type.dtype = LogSumDType(scores.dtype());
  const Expr lse = g.TrainingOutput("SoftmaxCrossEntropyLossTraining", 2, std::move(type));
  g.SetInputGradients("SoftmaxCrossEntropyLossGrad", {d_loss, scores, labels, g.input(2), lse}, {0},
                      g.Attributes({"reduction", "ignore_index"}));
}

// loss = -sum over rows of w X[label] (/ sum of w);  dX = -dloss w at the label (/ sum of w)
void NegativeLogLikelihoodLossRule(GradientContext& g) {
  const Exprs inputs = {g.dY(), g.input(1), g.input(2), ShapeOf(g.input(0))};
  g.SetInputGradient(0, TrainingOp("NegativeLogLikelihoodLossGrad", inputs,
                                   g.Attributes({"reduction", "ignore_index"})));
}

// losses and their slopes by X;  dX = dlosses times the slopes
void CtcLossRule(GradientContext& g) {
  const Expr slopes = g.EnsureOutput(1, g.input(0).value()->type());
  g.SetInputGradient(0, slopes * Unsqueeze(g.dY(0), {1}));
}

}  // namespace
}  // namespace gradient

namespace {

Status InferCrossEntropy(Graph&, Node* node) {
  const Value *scores = node->input(0), *labels = node->input(1);
  if (scores == nullptr || labels == nullptr || !scores->type().is_tensor()) return {};
  const bool each = node->Attr<std::string>("reduction", "mean") == "none";
  SetOutputType(*node, 0, scores->dtype(), each ? labels->type().shape : std::vector<Dim>());
  SetOutputType(*node, 1, scores->dtype(), scores->type().shape);
  SetOutputType(*node, 2, LogSumDType(scores->dtype()), labels->type().shape);
  return {};
}

// The scores' shape, of the attribute's dtype.
Status InferCrossEntropyGrad(Graph&, Node* node) {
  const Value* scores = node->input(1);
  if (scores == nullptr || !scores->type().is_tensor()) return {};
  const auto dtype = node->Attr<int64_t>("dtype", static_cast<int64_t>(scores->dtype()));
  SetOutputType(*node, 0, static_cast<DType>(dtype), scores->type().shape);
  return {};
}

// The losses' shape is [batch].
Status InferCtcLoss(Graph&, Node* node) {
  const Value* log_probs = node->input(0);
  if (log_probs == nullptr || !log_probs->type().is_tensor()) return {};
  ValueType losses = ValueType::Tensor(log_probs->dtype());
  const auto& shape = log_probs->type().shape;
  if (shape && shape->size() == 3) losses.shape = std::vector<Dim>{(*shape)[1]};
  if (node->output(0) != nullptr) node->output(0)->set_type(std::move(losses));
  return {};
}

}  // namespace

// clang-format off
std::vector<OpDef> LossOps() {
  return {
    {.op_type = "NegativeLogLikelihoodLoss",
     .rule = {.function = gradient::NegativeLogLikelihoodLossRule, .stops = {1}, .refuses = {2}},
     .derivative_note = "by the input; class weights are refused"},
    {.op_type = "SoftmaxCrossEntropyLoss",
     .rule = {.function = gradient::SoftmaxCrossEntropyLossRule, .stops = {1}, .refuses = {2}},
     .derivative_note = "scores, through loss and log_prob; class weights are refused"},
    // SoftmaxCrossEntropyLossTraining (scores, labels, weights?) -> loss, log_prob, lse  ONNX's
    // SoftmaxCrossEntropyLoss; lse, of the labels' shape, is the logarithm of each sample's sum of e^score; float32
    // (float64 for float64)
    {.op_type = "SoftmaxCrossEntropyLossTraining", .domain = kCaesuraDomain, .min_inputs = 2, .max_inputs = 3,
     .max_outputs = 3, .infer = InferCrossEntropy,
     .rule = {.function = gradient::SoftmaxCrossEntropyLossRule, .stops = {1}, .refuses = {2}, .outputs = 2}},
    // SoftmaxCrossEntropyLossGrad (dLoss, scores, labels, weights?, lse) -> dScores  attributes reduction,
    // ignore_index, dtype (of dScores: float16 or bfloat16 where scores are float32); lse as
    // SoftmaxCrossEntropyLossTraining gave it
    {.op_type = "SoftmaxCrossEntropyLossGrad", .domain = kCaesuraDomain, .min_inputs = 5, .max_inputs = 5,
     .infer = InferCrossEntropyGrad},
    // CtcLoss (log_probs [steps, batch, classes], targets[int64] [batch, labels] or one after the other,
    // input_lengths[int64], target_lengths[int64]) -> losses [batch], slopes  attributes blank, zero_infinity. slopes:
    // of each loss the derivative by its log_probs, as PyTorch has it: of what log_probs are the log-softmax of.
    // float32 and float64
    {.op_type = "CtcLoss", .domain = kCaesuraDomain, .min_inputs = 4, .max_inputs = 4, .max_outputs = 2,
     .type_of_output = {-1, 0}, .infer = InferCtcLoss,
     .rule = {.function = gradient::CtcLossRule, .stops = {1, 2, 3}}},
    // NegativeLogLikelihoodLossGrad (dLoss, labels, weights?, shape[host] of input) -> dInput attributes likewise
    {.op_type = "NegativeLogLikelihoodLossGrad", .domain = kCaesuraDomain, .min_inputs = 4, .max_inputs = 4,
     .infer = ShapeOfInput<3>},
  };
}
// clang-format on

}  // namespace caesura
