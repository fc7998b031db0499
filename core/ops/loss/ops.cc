// SPDX-License-Identifier: Apache-2.0
// The rows of losses (core/graph/op_def.h), and their gradient rules.
#include <numeric>
#include <string>
#include <utility>
#include <vector>

#include "core/gradient/gradient_rules.h"
#include "core/graph/op_def.h"
#include "core/ops/infer_types.h"
#include "core/ops/loss/loss_spec.h"
#include "core/ops/op_bodies.h"

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

// D = dloss u with u = w (p - one-hot) (/ sum of w), p the softmax of the scores, whose lse this is
// ddloss = sum of G u, dscores = c p (G - sum of G p), with c = dloss w (/ sum of w)
void SoftmaxCrossEntropyLossGradRule(GradientContext& g) {
  const Expr G = g.dY(), d_loss = g.input(0), scores = g.input(1), labels = g.input(2),
             weights = g.input(3);
  const AttributeMap attributes = g.Attributes({"reduction", "ignore_index"});
  if (g.Needs(0)) {
    const Expr u = TrainingOp("SoftmaxCrossEntropyLossGrad",
                              {OnesLike(d_loss), scores, labels, weights, g.input(4)}, attributes);
    const bool each = g.Attr<std::string>("reduction", "mean") == "none";
    const Expr product = Cast(G, u.dtype()) * u;
    g.SetInputGradient(0, each ? ReduceSum(product, {1}, false) : ReduceSum(product, {}, false));
  }
  if (!g.Needs(1)) return;
  const Expr at_label = TrainingOp("NegativeLogLikelihoodLossGrad",
                                   {d_loss, labels, weights, ShapeOf(scores)}, attributes);
  const AttributeMap classes = {{"axis", int64_t{1}}};
  const Expr p = Op("Softmax", {scores}, classes);
  g.SetInputGradient(1, TrainingOp("SoftmaxGrad", {Cast(G, p.dtype()), p}, classes) *
                            -ReduceSum(at_label, {1}, true));
}

// D = -dloss w at the label (/ sum of w);  ddloss = the loss of G
void NegativeLogLikelihoodLossGradRule(GradientContext& g) {
  g.SetInputGradient(0, Op("NegativeLogLikelihoodLoss", {g.dY(), g.input(1), g.input(2)},
                           g.Attributes({"reduction", "ignore_index"})));
}

// --- bodies ---

// 0, 1, ... for as many classes as `count` says, which has one element.
Expr Classes(Expr count) {
  const Tensor* known = count.value()->graph()->Initializer(count.value());
  if (known == nullptr) return Op("Range", {Int(0, count), Squeeze(count, {0}), Int(1, count)});
  std::vector<int64_t> classes(*known->data<int64_t>());
  std::iota(classes.begin(), classes.end(), 0);
  return Ints(classes, count);
}

// Labels compared with each class; these lie along axis 1 of scores of this rank.
Expr OneHot(Expr labels, Expr classes, int rank) {
  std::vector<int64_t> others;  // the axes after that of classes
  for (int i = 2; i < rank; ++i) others.push_back(i - 1);
  if (!others.empty()) classes = Unsqueeze(classes, others);
  return Equal(Unsqueeze(Cast(labels, DType::kInt64), {1}), classes);
}

// The gradient of the scores, or of their logarithms: `each` (null: minus one at the label) times
// the sample's share of dLoss, which is input 0. `each` has one_hot's shape.
Expr ScoreGradient(OpBody& b, Expr each, Expr one_hot, Expr labels, Expr weights, int rank) {
  const Expr d_loss = b.input(0), zero = Number(0, d_loss);
  const int64_t* ignored = b.node().FindAttr<int64_t>("ignore_index");
  Expr counts, weight;
  if (ignored != nullptr) {
    const Expr label = Unsqueeze(labels, {1});
    counts = Op("Not", {Equal(label, Number(static_cast<double>(*ignored), label))});
    weight = Mask(counts, d_loss);
  }
  if (weights) {
    std::vector<int64_t> row(rank, 1);
    row[1] = -1;
    const Expr own =
        ReduceSum(Where(one_hot, Reshape(weights, Ints(row, weights)), zero), {1}, true);
    weight = counts ? Where(counts, own, zero) : own;
  }
  const std::string reduction = b.Attr<std::string>("reduction", "mean");
  Expr g = reduction == "none" ? Unsqueeze(d_loss, {1}) : d_loss;
  if (reduction == "mean")
    g = g / (weight ? ReduceSum(weight, {}, false) : Cast(Op("Size", {labels}), d_loss.dtype()));
  if (weights) g = g * weight;
  const Expr dx = each ? each * g : Where(one_hot, -g, zero);
  return counts ? Where(counts, dx, zero) : dx;
}

void SoftmaxCrossEntropyLossTrainingBody(OpBody& b) {
  const Expr scores = b.input(0);
  const Exprs found = Ops("SoftmaxCrossEntropyLoss", {scores, b.input(1), b.input(2)},
                          b.Wants(1) ? 2 : 1, b.attributes());
  b.SetOutput(0, found[0]);
  if (b.Wants(1)) b.SetOutput(1, found[1]);
  if (!b.Wants(2)) return;
  const Expr wide = Cast(scores, LogSumDType(scores.dtype()));
  b.SetOutput(2, Op("ReduceLogSumExp", {wide, Ints({1}, wide)}, {{"keepdims", int64_t{0}}}));
}

void SoftmaxCrossEntropyLossGradBody(OpBody& b) {
  const int rank = b.Rank(1);
  if (rank < 2) return;
  const Expr scores = b.input(1), labels = b.input(2);
  const DType wide = LogSumDType(scores.dtype());
  const Expr one_hot = OneHot(labels, Classes(DimOf(scores, 1)), rank);
  const Expr p = Cast(Op("Softmax", {Cast(scores, wide)}, {{"axis", int64_t{1}}}), scores.dtype());
  b.SetOutput(0, ScoreGradient(b, p - Mask(one_hot, p), one_hot, labels, b.input(3), rank));
}

void NegativeLogLikelihoodLossGradBody(OpBody& b) {
  const int rank = b.Rank(1) + 1;
  const Expr labels = b.input(1), shape = b.input(3);
  const Tensor* known = b.Constant(3);
  const Expr count = known == nullptr ? Gather(shape, Ints({1}, shape), 0)
                                      : Ints({known->data<int64_t>()[1]}, shape);
  const Expr one_hot = OneHot(labels, Classes(count), rank);
  b.SetOutput(0, ScoreGradient(b, Expr(), one_hot, labels, b.input(2), rank));
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
     .rule = {.function = gradient::SoftmaxCrossEntropyLossRule, .stops = {1}, .refuses = {2}, .outputs = 2},
     .body = gradient::SoftmaxCrossEntropyLossTrainingBody},
    // SoftmaxCrossEntropyLossGrad (dLoss, scores, labels, weights?, lse) -> dScores  attributes reduction,
    // ignore_index, dtype (of dScores: float16 or bfloat16 where scores are float32); lse as
    // SoftmaxCrossEntropyLossTraining gave it
    {.op_type = "SoftmaxCrossEntropyLossGrad", .domain = kCaesuraDomain, .min_inputs = 5, .max_inputs = 5,
     .infer = InferCrossEntropyGrad,
     .rule = {.function = gradient::SoftmaxCrossEntropyLossGradRule, .stops = {2, 4}, .refuses = {3}},
     .body = gradient::SoftmaxCrossEntropyLossGradBody},
    // CtcLoss (log_probs [steps, batch, classes], targets[int64] [batch, labels] or one after the other,
    // input_lengths[int64], target_lengths[int64]) -> losses [batch], slopes  attributes blank, zero_infinity. slopes:
    // of each loss the derivative by its log_probs, as PyTorch has it: of what log_probs are the log-softmax of.
    // float32 and float64
    {.op_type = "CtcLoss", .domain = kCaesuraDomain, .min_inputs = 4, .max_inputs = 4, .max_outputs = 2,
     .type_of_output = {-1, 0}, .infer = InferCtcLoss,
     .rule = {.function = gradient::CtcLossRule, .stops = {1, 2, 3}, .outputs = 1}, .derivative_note = "losses",
     .body = gradient::CtcLossBody},
    // NegativeLogLikelihoodLossGrad (dLoss, labels, weights?, shape[host] of input) -> dInput attributes likewise
    {.op_type = "NegativeLogLikelihoodLossGrad", .domain = kCaesuraDomain, .min_inputs = 4, .max_inputs = 4,
     .infer = ShapeOfInput<3>,
     .rule = {.function = gradient::NegativeLogLikelihoodLossGradRule, .stops = {1, 3}, .refuses = {2}},
     .body = gradient::NegativeLogLikelihoodLossGradBody},
  };
}
// clang-format on

}  // namespace caesura
