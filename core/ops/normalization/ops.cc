// SPDX-License-Identifier: Apache-2.0
// The rows of normalization and softmax (core/graph/op_def.h), and their gradient rules.
#include <algorithm>
#include <cmath>
#include <vector>

#include "core/gradient/gradient_rules.h"
#include "core/graph/op_def.h"
#include "core/ops/op_bodies.h"

namespace caesura {
namespace gradient {
namespace {

// Y = e^X / sum of e^X;  dX = Y (dY - sum of dY Y)
void SoftmaxRule(GradientContext& g) {
  g.SetInputGradient(
      0, TrainingOp("SoftmaxGrad", {g.dY(), g.output()}, {{"axis", g.IntAttr("axis", -1)}}));
}

// Y = X - ln(sum of e^X);  dX = dY - e^Y sum of dY
void LogSoftmaxRule(GradientContext& g) {
  g.SetInputGradient(
      0, TrainingOp("LogSoftmaxGrad", {g.dY(), g.output()}, {{"axis", g.IntAttr("axis", -1)}}));
}

std::vector<int64_t> AllAxesBut1(int rank) {
  std::vector<int64_t> axes;
  for (int i = 0; i < rank; ++i) {
    if (i != 1) axes.push_back(i);
  }
  return axes;
}

// Y = s x + B with x = (X - m) v, v = 1/sqrt(var + e), m and var given
// dX = dY s v, ds = sum of dY x, dB = sum of dY, dm = -s v dB, dvar = -s v^2 ds / 2
void FrozenBatchNormalization(GradientContext& g, int rank) {
  std::vector<int64_t> channel(rank < 2 ? 1 : rank - 1, 1), axes = AllAxesBut1(rank);
  channel[0] = -1;
  const Expr x = g.input(0), dy = g.dY(), shape = Ints(channel, x);
  const Expr scale = Cast(g.input(1), x.dtype()), mean = Cast(g.input(3), x.dtype());
  const Expr v = Reciprocal(Sqrt(Cast(g.input(4), x.dtype()) + g.FloatAttr("epsilon", 1e-5)));
  const Expr dB = ReduceSum(dy, axes, false);
  const Expr ds = ReduceSum(dy * (x - Reshape(mean, shape)), axes, false) * v;
  g.SetInputGradient(0, dy * Reshape(scale * v, shape));
  g.SetInputGradient(1, ds);
  g.SetInputGradient(2, dB);
  g.SetInputGradient(3, -(scale * v * dB));
  g.SetInputGradient(4, scale * Square(v) * ds * -0.5);
}

// Y = s (X - m) v + B with the batch's own m and v;  the terms through m and v are the kernel's
void BatchNormalizationRule(GradientContext& g) {
  const int rank = g.Rank(0);
  if (g.IntAttr("training_mode", 0) == 0) return FrozenBatchNormalization(g, rank);
  const Expr x = g.input(0), axes = Ints(AllAxesBut1(rank), x);
  const Expr mean = Op("ReduceMean", {x, axes}),
             variance = Op("ReduceMean", {Square(x - mean), axes});
  const Expr v = Reciprocal(Sqrt(variance + g.FloatAttr("epsilon", 1e-5)));
  const Exprs inputs = {g.dY(), x, g.input(1), Reshape(mean, Ints({-1}, x)),
                        Reshape(v, Ints({-1}, x))};
  g.SetInputGradients("BatchNormalizationGrad", inputs, {0, 1, 2}, g.Attributes({"epsilon"}));
}

// The same from the statistics that the forward op keeps
void BatchNormalizationTrainingRule(GradientContext& g) {
  const ValueType per_channel = g.input(1).value()->type();
  const Expr mean = g.EnsureOutput(3, per_channel), v = g.EnsureOutput(4, per_channel);
  const Exprs inputs = {g.dY(), g.input(0), g.input(1), mean, v};
  g.SetInputGradients("BatchNormalizationGrad", inputs, {0, 1, 2}, g.Attributes({"epsilon"}));
}

// Y = s (X - m) v + B over the last axes;  the terms through m and v are the kernel's, which takes
// s and B for alike
void LayerNormalizationRule(GradientContext& g) {
  Expr mean, v;
  if (g.input(0).dtype() == DType::kFloat64) {  // which ONNX has no statistics of
    const Expr x = g.input(0);
    const int rank = g.Rank(0);
    const int64_t first = g.IntAttr("axis", -1);
    std::vector<int64_t> last;
    for (int64_t i = first < 0 ? first + rank : first; i < rank; ++i) last.push_back(i);
    const Expr axes = Ints(last, x);
    mean = Op("ReduceMean", {x, axes});
    v = Reciprocal(Sqrt(Op("ReduceMean", {Square(x - mean), axes}) + g.FloatAttr("epsilon", 1e-5)));
  } else {
    mean = g.EnsureOutput(1, ValueType::Tensor(DType::kFloat32));
    v = g.EnsureOutput(2, ValueType::Tensor(DType::kFloat32));
  }
  const Exprs inputs = {g.dY(), g.input(0), g.input(1), mean, v};
  const bool alike = !g.HasInput(2) ||
                     g.input(1).value()->type().ToString() == g.input(2).value()->type().ToString();
  if (alike)
    return g.SetInputGradients("LayerNormalizationGrad", inputs, {0, 1, 2}, g.attributes());
  g.SetInputGradients("LayerNormalizationGrad", inputs, {0, 1}, g.attributes());
  g.SetInputGradient(2, SumTo(g.dY(), g.input(2)));
}

// Y = s X / sqrt(mean of X^2 + e) over the last axes
void RmsNormalizationRule(GradientContext& g) {
  g.SetInputGradients("RMSNormalizationGrad", {g.dY(), g.input(0), g.input(1)}, {0, 1},
                      g.attributes());
}
bool OneDType(const GradientContext& g) { return g.input(0).dtype() == g.input(1).dtype(); }

// Y = s (X - m) v + B over the positions of a channel (of a group of channels)
void InstanceNormalizationRule(GradientContext& g) {
  g.SetInputGradients("InstanceNormalizationGrad", {g.dY(), g.input(0), g.input(1)}, {0, 1, 2},
                      g.attributes());
}
void GroupNormalizationRule(GradientContext& g) {
  g.SetInputGradients("GroupNormalizationGrad", {g.dY(), g.input(0), g.input(1)}, {0, 1, 2},
                      g.attributes());
}

// Y = (X - m) / (d + e) with mean m and deviation d
// dX = (dY - mean of dY) / (d + e) - Y mean of dY Y / d, the latter 0 where d = 0
void MeanVarianceNormalizationRule(GradientContext& g) {
  const Expr x = g.input(0), dy = g.dY(), y = g.output();
  const Expr axes = Ints(g.Attr<std::vector<int64_t>>("axes", {0, 2, 3}), x);
  auto mean = [&](Expr v) { return Op("ReduceMean", {v, axes}); };
  const Expr d = Sqrt(mean(Square(x - mean(x))));
  const Expr divisor = d + Mask(Equal(d, Number(0, d)), d);
  g.SetInputGradient(
      0, (dy - mean(dy)) / (d + 1e-9) - y * mean(dy * y) / divisor);  // 1e-9: ONNX's own epsilon
}

// Y = X / n with n the norm of X;  dX = (dY - Y sum of dY Y) / n, with sign X for the first Y if p
// = 1; 0 where n = 0
void LpNormalizationRule(GradientContext& g) {
  const Expr x = g.input(0), y = g.output(), zero = Number(0, x),
             axes = Ints({g.IntAttr("axis", -1)}, x);
  const bool first = g.IntAttr("p", 2) == 1;
  const Expr n = Op(first ? "ReduceL1" : "ReduceL2", {x, axes});
  const Expr inner = Op("ReduceSum", {g.dY() * y, axes});
  g.SetInputGradient(0, Where(Equal(n, zero), zero, (g.dY() - (first ? Sign(x) : y) * inner) / n));
}

// Sums of `size` neighbouring channels: the mean of a window over [N, 1, C, rest], times its size.
Expr ChannelMeans(Expr v, int64_t before, int64_t after) {
  const Expr rest = Op("ReduceProd", {ShapeOf(v, 2), Ints({0}, v)});
  const Expr planes = Reshape(v, Concat({DimOf(v, 0), Ints({1}, v), DimOf(v, 1), rest}, 0));
  const AttributeMap window = {{"kernel_shape", std::vector<int64_t>{before + 1 + after, 1}},
                               {"pads", std::vector<int64_t>{before, 0, after, 0}},
                               {"count_include_pad", int64_t{1}}};
  return ReshapeLike(Op("AveragePool", {planes}, window), v);
}

// Y = X D^-b with D = k + a mean of X^2 over n channels;  dX = dY D^-b - 2 a b X mean of (dY X
// D^(-b-1))
void LrnRule(GradientContext& g) {
  const double a = g.FloatAttr("alpha", 1e-4), b = g.FloatAttr("beta", 0.75),
               k = g.FloatAttr("bias", 1);
  const int64_t n = g.IntAttr("size", 1), before = (n - 1) / 2, after = n - 1 - before;
  const Expr x = g.input(0), dy = g.dY(), d = ChannelMeans(Square(x), before, after) * a + k;
  const Expr spread =
      ChannelMeans(dy * x * Pow(d, -b - 1), after, before);  // who has me in its window
  g.SetInputGradient(0, dy * Pow(d, -b) - x * spread * (2 * a * b));
}

// D = Y (dY - s), s = sum of dY Y;  ddY = the same of G, dY' = G (dY - s) - dY (sum of G Y)
void SoftmaxGradRule(GradientContext& g) {
  const int64_t axis = g.IntAttr("axis", -1);
  const Expr G = g.dY(), dy = g.input(0), y = g.input(1);
  g.SetInputGradient(0, TrainingOp("SoftmaxGrad", {G, y}, {{"axis", axis}}));
  g.SetInputGradient(
      1, G * (dy - ReduceSum(dy * y, {axis}, true)) - dy * ReduceSum(G * y, {axis}, true));
}

// D = dY - e^Y s, s = sum of dY;  ddY = G - sum of G e^Y, dY' = -G e^Y s
void LogSoftmaxGradRule(GradientContext& g) {
  const int64_t axis = g.IntAttr("axis", -1);
  const Expr weighed = g.dY() * Exp(g.input(1));
  g.SetInputGradient(0, g.dY() - ReduceSum(weighed, {axis}, true));
  g.SetInputGradient(1, -(weighed * ReduceSum(g.input(0), {axis}, true)));
}

}  // namespace
}  // namespace gradient

// clang-format off
std::vector<OpDef> NormalizationOps() {
  using Rows = OpDef::Rows;
  using Derivative = OpDef::Derivative;
  return {
    {.op_type = "BatchNormalization", .rule = {.function = gradient::BatchNormalizationRule, .outputs = 1},
     .derivative_note = "also by the statistics in evaluation mode; the running ones have none"},
    {.op_type = "GroupNormalization", .rule = {.function = gradient::GroupNormalizationRule}},
    {.op_type = "Hardmax", .derivative = Derivative::kZero, .derivative_note = "a step: zero"},
    {.op_type = "InstanceNormalization", .rule = {.function = gradient::InstanceNormalizationRule}},
    {.op_type = "LRN", .rule = {.function = gradient::LrnRule}},
    {.op_type = "LayerNormalization", .rows = Rows::kAlongAxis,
     .rule = {.function = gradient::LayerNormalizationRule, .outputs = 1},
     .derivative_note = "Y; mean and deviation as outputs have none"},
    {.op_type = "LogSoftmax", .rows = Rows::kAlongAxis, .rule = {.function = gradient::LogSoftmaxRule}},
    {.op_type = "LpNormalization", .rule = {.function = gradient::LpNormalizationRule}},
    {.op_type = "MeanVarianceNormalization", .rule = {.function = gradient::MeanVarianceNormalizationRule}},
    {.op_type = "RMSNormalization", .rows = Rows::kAlongAxis,
     .rule = {.function = gradient::RmsNormalizationRule, .applies = gradient::OneDType},
     .derivative_note = "one dtype; mixed ones through the function body"},
    {.op_type = "Softmax", .rows = Rows::kAlongAxis, .rule = {.function = gradient::SoftmaxRule}},
    // SoftmaxGrad (dY, Y) -> dX  attribute axis. dX = Y * (dY - sum(dY * Y, axis))
    {.op_type = "SoftmaxGrad", .domain = kCaesuraDomain, .min_inputs = 2, .max_inputs = 2,
     .type_of_output = {0}, .rows = Rows::kAlongAxis, .rule = {.function = gradient::SoftmaxGradRule},
     .body = gradient::SoftmaxGradBody},
    // LogSoftmaxGrad (dY, Y) -> dX  attribute axis. dX = dY - exp(Y) * sum(dY, axis)
    {.op_type = "LogSoftmaxGrad", .domain = kCaesuraDomain, .min_inputs = 2, .max_inputs = 2,
     .type_of_output = {0}, .rows = Rows::kAlongAxis, .rule = {.function = gradient::LogSoftmaxGradRule},
     .body = gradient::LogSoftmaxGradBody},
    // BatchNormalizationTraining (X, scale, B, input_mean, input_var) -> Y, running_mean, running_var, saved_mean,
    // saved_inv_std  attributes epsilon, momentum, unbiased: 1 puts n/(n-1) * variance into running_var, as PyTorch
    // does (default); 0 as ONNX's training_mode does
    {.op_type = "BatchNormalizationTraining", .domain = kCaesuraDomain, .min_inputs = 5, .max_inputs = 5,
     .max_outputs = 5, .type_of_output = {0, 3, 4, 1, 1},
     .rule = {.function = gradient::BatchNormalizationTrainingRule, .stops = {3, 4}, .outputs = 1},
     .body = gradient::BatchNormalizationTrainingBody},
    // BatchNormalizationGrad (dY, X, scale, saved_mean, saved_inv_std) -> dX, dScale, dB
    {.op_type = "BatchNormalizationGrad", .domain = kCaesuraDomain, .min_inputs = 5, .max_inputs = 5,
     .max_outputs = 3, .type_of_output = {1, 2, 2},
     .rule = {.stops = {3, 4}, .by_body = true},
     .body = gradient::BatchNormalizationGradBody},
    // LayerNormalizationGrad (dY, X, scale, mean, inv_std) -> dX, dScale, dB  attribute axis; mean and inv_std are the
    // optional outputs of ONNX's LayerNormalization (always float32 or wider)
    {.op_type = "LayerNormalizationGrad", .domain = kCaesuraDomain, .min_inputs = 5, .max_inputs = 5,
     .max_outputs = 3, .type_of_output = {1, 2, 2}, .rows = Rows::kAlongAxis, .row_sums = {1, 2},
     .rule = {.stops = {3, 4}, .by_body = true},
     .body = gradient::LayerNormalizationGradBody},
    // RMSNormalizationGrad (dY, X, scale) -> dX, dScale  attributes axis, epsilon, stash_type
    {.op_type = "RMSNormalizationGrad", .domain = kCaesuraDomain, .min_inputs = 3, .max_inputs = 3,
     .max_outputs = 2, .type_of_output = {1, 2}, .rows = Rows::kAlongAxis, .row_sums = {1},
     .rule = {.by_body = true},
     .body = gradient::RMSNormalizationGradBody},
    // InstanceNormalizationGrad (dY, X, scale) -> dX, dScale, dB  attribute epsilon
    {.op_type = "InstanceNormalizationGrad", .domain = kCaesuraDomain, .min_inputs = 3, .max_inputs = 3,
     .max_outputs = 3, .type_of_output = {1, 2, 2},
     .rule = {.by_body = true},
     .body = gradient::InstanceNormalizationGradBody},
    // GroupNormalizationGrad (dY, X, scale) -> dX, dScale, dB  attributes epsilon, num_groups
    {.op_type = "GroupNormalizationGrad", .domain = kCaesuraDomain, .min_inputs = 3, .max_inputs = 3,
     .max_outputs = 3, .type_of_output = {1, 2, 2},
     .rule = {.by_body = true},
     .body = gradient::GroupNormalizationGradBody},
  };
}
// clang-format on

}  // namespace caesura
