// SPDX-License-Identifier: Apache-2.0
// Gradient rules of convolutions, pools, losses and recurrent layers: mostly kernels of
// training/kernels/training_ops.h.
#include "core/kernels/spec/loss_spec.h"
#include "training/gradient/gradient_rules.h"
#include "training/kernels/training_ops.h"

namespace caesura::gradient {
namespace {

// Y = X * W + B;  dX = dY correlated with W, dW = X correlated with dY, dB = sum of dY
void ConvRule(GradientContext& g) {
  g.SetInputGradients("ConvGrad", {g.dY(), g.input(0), g.input(1)}, {0, 1, 2}, g.attributes());
}
void ConvTransposeRule(GradientContext& g) {
  g.SetInputGradients("ConvTransposeGrad", {g.dY(), g.input(0), g.input(1)}, {0, 1, 2},
                      g.attributes());
}

// As Conv, with X read at offsets and weighed by a mask
void DeformConvRule(GradientContext& g) {
  const Exprs inputs = {g.dY(), g.input(0), g.input(1), g.input(2), g.input(3), g.input(4)};
  g.SetInputGradients("DeformConvGrad", inputs, {0, 1, 2, 3, 4}, g.attributes());
}

// Y = max of a window;  dX = dY at the first maximum
void MaxPoolRule(GradientContext& g) {
  g.SetInputGradient(0, TrainingOp("MaxPoolGrad", {g.dY(), g.input(0)}, g.attributes()));
}

// Y = mean of a window;  dX = dY / n all over the window
void AveragePoolRule(GradientContext& g) {
  g.SetInputGradient(0, TrainingOp("AveragePoolGrad", {g.dY(), g.input(0)}, g.attributes()));
}

// Y = (sum of |X|^p of a window)^(1/p);  dX = dY sign X |X|^(p-1) Y^(1-p)
void LpPoolRule(GradientContext& g) {
  g.SetInputGradient(0, TrainingOp("LpPoolGrad", {g.dY(), g.input(0), g.output()}, g.attributes()));
}

// Y = mean over all positions;  dX = dY / n everywhere
void GlobalAveragePoolRule(GradientContext& g) {
  const DType wide = g.dY().dtype() == DType::kFloat64 ? DType::kFloat64 : DType::kFloat32;
  const Expr count = Op("ReduceProd", {ShapeOf(g.input(0), 2)}, {{"keepdims", int64_t{0}}});
  const Expr share = g.dY() * Cast(Reciprocal(Cast(count, wide)), g.dY().dtype());
  g.SetInputGradient(0, Expand(share, ShapeOf(g.input(0))));
}

// Y = max over all positions;  dX = dY at the first maximum
void GlobalMaxPoolRule(GradientContext& g) {
  g.SetInputGradient(0, TrainingOp("GlobalMaxPoolGrad", {g.dY(), g.input(0)}));
}

// Y = (sum of |X|^p)^(1/p) over all positions;  dX = dY sign X (|X| / Y)^(p-1), 0 where Y = 0
void GlobalLpPoolRule(GradientContext& g) {
  const int64_t p = g.IntAttr("p", 2);
  const Expr x = g.input(0), y = g.output(), zero = Number(0, x);
  if (p == 1) return g.SetInputGradient(0, g.dY() * Sign(x));
  const Expr ratio = Abs(x) / Where(Equal(y, zero), Number(1, x), y);
  g.SetInputGradient(0,
                     g.dY() * Sign(x) * (p == 2 ? ratio : Pow(ratio, static_cast<double>(p - 1))));
}

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

// h_t = f(W x_t + R h_(t-1) + B);  back through time
void RnnRule(GradientContext& g, const std::string& op) {
  Exprs inputs = {g.dY(0), g.dY(1)};
  for (int i = 0; i < 6; ++i) inputs.push_back(g.input(i));
  inputs.push_back(g.TrainingOutput(op + "Training", 2, ValueType::Tensor(g.input(0).dtype())));
  g.SetInputGradients(op + "Grad", inputs, {0, 1, 2, 3, 5}, g.attributes());
}
void PlainRnnRule(GradientContext& g) { RnnRule(g, "RNN"); }
void GruRule(GradientContext& g) { RnnRule(g, "GRU"); }

// c_t = f c_(t-1) + i c', h_t = o tanh c_t;  back through time
void LstmRule(GradientContext& g) {
  Exprs inputs = {g.dY(0), g.dY(1), g.dY(2)};
  for (int i = 0; i < 8; ++i) inputs.push_back(g.input(i));
  inputs.push_back(g.TrainingOutput("LSTMTraining", 3, ValueType::Tensor(g.input(0).dtype())));
  g.SetInputGradients("LSTMGrad", inputs, {0, 1, 2, 3, 5, 6, 7}, g.attributes());
}

}  // namespace

std::vector<GradientRule> NnRules() {
  return {
      {.op_type = "AveragePool", .function = AveragePoolRule},
      {.op_type = "Conv", .function = ConvRule},
      {.op_type = "ConvTranspose", .function = ConvTransposeRule},
      {.op_type = "CtcLoss",
       .function = CtcLossRule,
       .domain = kTrainingDomain,
       .stops = {1, 2, 3}},
      {.op_type = "DeformConv", .function = DeformConvRule},
      {.op_type = "GRU", .function = GruRule, .stops = {4}},
      {.op_type = "GRUTraining", .function = GruRule, .domain = kTrainingDomain, .stops = {4}},
      {.op_type = "GlobalAveragePool", .function = GlobalAveragePoolRule},
      {.op_type = "GlobalLpPool", .function = GlobalLpPoolRule},
      {.op_type = "GlobalMaxPool", .function = GlobalMaxPoolRule},
      {.op_type = "LSTM", .function = LstmRule, .stops = {4}},
      {.op_type = "LSTMTraining", .function = LstmRule, .domain = kTrainingDomain, .stops = {4}},
      {.op_type = "LpPool", .function = LpPoolRule},
      {.op_type = "MaxPool", .function = MaxPoolRule},
      {.op_type = "NegativeLogLikelihoodLoss",
       .function = NegativeLogLikelihoodLossRule,
       .stops = {1},
       .refuses = {2}},
      {.op_type = "RNN", .function = PlainRnnRule, .stops = {4}},
      {.op_type = "RNNTraining", .function = PlainRnnRule, .domain = kTrainingDomain, .stops = {4}},
      {.op_type = "SoftmaxCrossEntropyLoss",
       .function = SoftmaxCrossEntropyLossRule,
       .stops = {1},
       .refuses = {2}},
      {.op_type = "SoftmaxCrossEntropyLossTraining",
       .function = SoftmaxCrossEntropyLossRule,
       .domain = kTrainingDomain,
       .stops = {1},
       .refuses = {2},
       .outputs = 2},
  };
}

}  // namespace caesura::gradient
