// SPDX-License-Identifier: Apache-2.0
// The gradients of softmax and of normalizations in ONNX's operators. With x the normalised
// elements that share statistics, and g = dY * scale:
//   dX = inv_std (g - mean(g) - x mean(g x)), dScale = sum of dY x, dB = sum of dY
#include <algorithm>
#include <optional>
#include <tuple>
#include <utility>
#include <vector>

#include "core/ops/op_bodies.h"

namespace caesura::gradient {
namespace {

Expr Mean(Expr x, Expr axes) { return Op("ReduceMean", {x, axes}); }

Expr InverseDeviation(Expr variance, double epsilon) {
  return Reciprocal(Sqrt(variance + epsilon));
}

// Half types are normalised in float32.
DType WideOf(Expr x) { return x.dtype() == DType::kFloat64 ? DType::kFloat64 : DType::kFloat32; }

std::vector<int64_t> AxesFrom(int64_t first, int rank) {
  std::vector<int64_t> axes;
  for (int64_t i = first < 0 ? first + rank : first; i < rank; ++i) axes.push_back(i);
  return axes;
}

// All axes but that of channels.
std::vector<int64_t> OtherAxes(int rank) {
  std::vector<int64_t> axes;
  for (int i = 0; i < rank; ++i) {
    if (i != 1) axes.push_back(i);
  }
  return axes;
}

// One element a channel, to be broadcast against a tensor of `rank` axes.
Expr OfChannels(Expr x, int rank) {
  std::vector<int64_t> shape(rank < 2 ? 1 : rank - 1, 1);
  shape[0] = -1;
  return Reshape(x, Ints(shape, x));
}

// The elements a channel has, where the shape says it.
std::optional<int64_t> KnownCountOfChannel(Expr x) {
  int64_t count = 1;
  for (const int64_t axis : OtherAxes(x.rank())) {
    const Dim& dim = (*x.value()->type().shape)[axis];
    if (!dim.known()) return std::nullopt;
    count *= dim.value;
  }
  return count;
}

Expr Scalar(double number, DType dtype, Expr beside) {
  return {beside.writer()->Scalar(number, dtype), beside.writer()};
}

// The elements a channel has, as a number of this dtype.
Expr CountOfChannel(Expr x, DType dtype) {
  if (const auto known = KnownCountOfChannel(x)) return Scalar(*known, dtype, x);
  const Expr channels = Cast(Squeeze(DimOf(x, 1), {0}), dtype);
  return Cast(Op("Size", {x}), dtype) / channels;
}

// n / (n - 1) for the n elements of a channel; 1 for one element.
Expr WithoutBias(Expr x, DType dtype) {
  if (const auto known = KnownCountOfChannel(x)) {
    const auto n = static_cast<double>(*known);
    return Scalar(n / std::max(n - 1, 1.0), dtype, x);
  }
  const Expr count = CountOfChannel(x, dtype), one = Number(1, count), others = count - 1;
  return count / Where(Less(others, one), one, others);
}

Expr InputGradient(Expr g, Expr x, Expr inv_std, Expr axes, bool is_centred) {
  const Expr centred = is_centred ? g - Mean(g, axes) : g;
  return inv_std * (centred - x * Mean(g * x, axes));
}

// The mean and the inverse deviation of x over some axes, which stay as 1.
std::pair<Expr, Expr> StatisticsOf(OpBody& b, Expr x, Expr axes) {
  const Expr mean = Mean(x, axes);
  return {mean, InverseDeviation(Mean(Square(x - mean), axes), b.FloatAttr("epsilon", 1e-5))};
}

// Statistics of groups of channels; 0 groups: each channel by itself.
void WriteGroups(OpBody& b, int64_t groups) {
  const int rank = b.Rank(1);
  const DType wide = WideOf(b.input(1));
  const Expr dy = Cast(b.input(0), wide), x = Cast(b.input(1), wide);
  const Expr scale = OfChannels(Cast(b.input(2), wide), rank), axes = Ints({2}, x);
  const auto in_groups = [&](Expr v) { return Op("Reshape", {v, Ints({0, groups, -1}, v)}); };
  const Expr grouped = in_groups(x);
  const auto [mean, inv_std] = StatisticsOf(b, grouped, axes);
  const Expr normal = (grouped - mean) * inv_std;
  if (b.Wants(0)) {
    const Expr dx = InputGradient(in_groups(dy * scale), normal, inv_std, axes, true);
    b.SetOutput(0, ReshapeLike(dx, x));
  }
  const std::vector<int64_t> others = OtherAxes(rank);
  if (b.Wants(1)) b.SetOutput(1, ReduceSum(dy * ReshapeLike(normal, x), others, false));
  if (b.Wants(2)) b.SetOutput(2, ReduceSum(dy, others, false));
}

}  // namespace

void SoftmaxGradBody(OpBody& b) {
  const Expr dy = b.input(0), y = b.input(1);
  b.SetOutput(0, y * (dy - ReduceSum(dy * y, {b.IntAttr("axis", -1)}, true)));
}

void LogSoftmaxGradBody(OpBody& b) {
  const Expr dy = b.input(0), y = b.input(1);
  b.SetOutput(0, dy - Exp(y) * ReduceSum(dy, {b.IntAttr("axis", -1)}, true));
}

void BatchNormalizationTrainingBody(OpBody& b) {
  const int rank = b.Rank(0);
  const Expr x = b.input(0), axes = Ints(OtherAxes(rank), x);
  const double epsilon = b.FloatAttr("epsilon", 1e-5), momentum = b.FloatAttr("momentum", 0.9);
  const DType wide = WideOf(x);
  const Expr mean = Mean(Cast(x, wide), axes);
  const Expr variance =
      Op("ReduceMean", {Square(Cast(x, wide) - mean), axes}, {{"keepdims", int64_t{0}}});
  const Expr of_channels = Reshape(mean, Ints({-1}, x));
  const DType stored = b.input(3).dtype();
  b.SetOutput(0, Op("BatchNormalization",
                    {x, b.input(1), b.input(2), Cast(of_channels, stored), Cast(variance, stored)},
                    b.Attributes({"epsilon"})));
  const auto moved = [&](int input, Expr by) {
    const Expr before = Cast(b.input(input), wide);
    return before * momentum + by * (1 - momentum);
  };
  if (b.Wants(1)) b.SetOutput(1, moved(3, of_channels));
  if (b.Wants(2)) {
    const bool is_unbiased = b.IntAttr("unbiased", 1) != 0;
    b.SetOutput(2, moved(4, is_unbiased ? variance * WithoutBias(x, wide) : variance));
  }
  if (b.Wants(3)) b.SetOutput(3, of_channels);
  if (b.Wants(4)) b.SetOutput(4, InverseDeviation(variance, epsilon));
}

void BatchNormalizationGradBody(OpBody& b) {
  const int rank = b.Rank(1);
  const DType wide = WideOf(b.input(1));
  const Expr dy = Cast(b.input(0), wide), x = Cast(b.input(1), wide);
  const std::vector<int64_t> others = OtherAxes(rank);
  Expr mean = Cast(b.input(3), wide), inv_std = Cast(b.input(4), wide);
  if (b.is_differentiated()) {
    std::tie(mean, inv_std) = StatisticsOf(b, x, Ints(others, x));
    inv_std = Reshape(inv_std, Ints({-1}, x));
  }
  const Expr centred = x - OfChannels(mean, rank);
  const Expr d_bias = ReduceSum(dy, others, false);
  const Expr d_scale = ReduceSum(dy * centred, others, false) * inv_std;
  b.SetOutput(1, d_scale);
  b.SetOutput(2, d_bias);
  if (!b.Wants(0)) return;
  const Expr a = Cast(b.input(2), wide) * inv_std, share = a / CountOfChannel(b.input(1), wide);
  const auto of = [&](Expr v) { return OfChannels(v, rank); };
  b.SetOutput(0, of(a) * dy - of(share * inv_std * d_scale) * centred - of(share * d_bias));
}

void LayerNormalizationGradBody(OpBody& b) {
  const DType wide = WideOf(b.input(1));
  const Expr dy = Cast(b.input(0), wide), x = Shaped(Cast(b.input(1), wide), b.input(1));
  const Expr scale = b.input(2), axes = Ints(AxesFrom(b.IntAttr("axis", -1), b.Rank(1)), x);
  Expr mean = b.input(3), inv_std = b.input(4);
  if (b.is_differentiated()) std::tie(mean, inv_std) = StatisticsOf(b, x, axes);
  const Expr normal = (x - mean) * inv_std;
  if (b.Wants(0))
    b.SetOutput(0, InputGradient(dy * Cast(scale, wide), normal, inv_std, axes, true));
  if (b.Wants(1)) b.SetOutput(1, SumTo(Shaped(dy * normal, x), scale));
  if (b.Wants(2)) b.SetOutput(2, SumTo(Shaped(dy, x), scale));
}

void RMSNormalizationGradBody(OpBody& b) {
  const DType wide = WideOf(b.input(1));
  const Expr dy = Cast(b.input(0), wide), x = Shaped(Cast(b.input(1), wide), b.input(1));
  const Expr scale = b.input(2), axes = Ints(AxesFrom(b.IntAttr("axis", -1), b.Rank(1)), x);
  const Expr inv_std = InverseDeviation(Mean(Square(x), axes), b.FloatAttr("epsilon", 1e-5));
  const Expr normal = x * inv_std;
  if (b.Wants(0))
    b.SetOutput(0, InputGradient(dy * Cast(scale, wide), normal, inv_std, axes, false));
  if (b.Wants(1)) b.SetOutput(1, SumTo(Shaped(dy * normal, x), scale));
}

void InstanceNormalizationGradBody(OpBody& b) { WriteGroups(b, 0); }
void GroupNormalizationGradBody(OpBody& b) { WriteGroups(b, b.IntAttr("num_groups", 1)); }

}  // namespace caesura::gradient
