// SPDX-License-Identifier: Apache-2.0
// Gradients of activations, of softmax and of dropout: by hand at the ends of their ranges, and
// what they promise of each other. Numerical checks of the rules that use them are in
// tests/gradients.
#include <cmath>

#include "tests/tensors.h"
#include "tests/core/ops/gradients/training_case.h"

namespace caesura {
namespace {

using ::testing::Each;
using ::testing::HasSubstr;
using ::testing::IsNan;

TEST(ReluGrad, StopsWhereNothingCameThrough) {
  const Tensor dy = Tensor::Of<double>({6}, {1, 2, 4, 8, 16, 32}),
               y = Tensor::Of<double>({6}, {0, -0.0, NAN, INFINITY, -1, 0.5});
  ExpectInEveryFloat("ReluGrad", {dy, y}, {}, {{0, 0, 4, 8, 0, 32}});
}

TEST(SigmoidAndTanhGrad, AreFlatAtTheEnds) {
  const Tensor dy = Tensor::Of<double>({4}, {1, 1, -4, 8});
  ExpectInEveryFloat("SigmoidGrad", {dy, Tensor::Of<double>({4}, {0, 1, 0.5, 0.25})}, {},
                     {{0, 0, -1, 1.5}});
  ExpectInEveryFloat("TanhGrad", {dy, Tensor::Of<double>({4}, {-1, 1, 0, 0.5})}, {},
                     {{0, 0, -4, 6}});
}

TEST(ActivationGrads, RefuseTensorsThatAreNotAlike) {
  const Tensor two = Tensor::Of<double>({2}, {1, 2}), one = Tensor::Of<double>({1}, {1});
  for (const char* op : {"ReluGrad", "GeluGrad", "SigmoidGrad", "TanhGrad"}) {
    EXPECT_THAT(WhyRefused(op, {two, one}), HasSubstr("expected tensors of one shape")) << op;
    EXPECT_NE(WhyRefused(op, {two, InDType(two, DType::kFloat32)}), "") << op;
  }
}

// Both forms, numerically: differences of 1e-6 are wrong by 1e-12 and by 1e-16 / 1e-6.
TEST(GeluGrad, FollowsTheForwardKernel) {
  const Tensor x = RandomTensor({200}, 7),
               ones = Tensor::Of<double>({200}, std::vector<double>(200, 1.0));
  for (const char* approximate : {"none", "tanh"}) {
    const AttributeMap attributes = {{"approximate", Text(approximate)}};
    auto forward = [&](double shift) {
      const Tensor moved = x.Clone().value();
      for (int i = 0; i < 200; ++i) moved.data<double>()[i] += shift;
      KernelCase gelu("Gelu", {moved}, attributes);
      return gelu.Run().value()[0].tensor();
    };
    const Tensor above = forward(1e-6), below = forward(-1e-6);
    const std::vector<double> dx = FirstOutput("GeluGrad", {ones, x}, attributes);
    for (int i = 0; i < 200; ++i) {
      EXPECT_NEAR(dx[i], (above.data<double>()[i] - below.data<double>()[i]) / 2e-6, 1e-8);
    }
  }
}

// Far from 0 Gelu is x or 0; at infinity the formula has infinity times zero, as PyTorch's.
TEST(GeluGrad, IsAStepFarFromZero) {
  const Tensor dy = Tensor::Of<double>({5}, {2, 2, 2, 2, 2}),
               x = Tensor::Of<double>({5}, {0, 64, -64, 32768, -32768});
  for (const char* approximate : {"none", "tanh"})
    ExpectInEveryFloat("GeluGrad", {dy, x}, {{"approximate", Text(approximate)}},
                       {{1, 2, 0, 2, 0}});
  const Tensor ends = FloatVector({kInfinity, -kInfinity});
  EXPECT_THAT(FirstOutput("GeluGrad", {ends, ends}), Each(IsNan()));
  EXPECT_THAT(WhyRefused("GeluGrad", {dy, x}, {{"approximate", Text("erf")}}),
              HasSubstr("expected none or tanh, got 'erf'"));
}

// [outer, axis, inner] as rows along the axis.
template <typename Fn>
void ForEachElementOfARow(const Shape& shape, int axis, int64_t row, Fn fn) {
  const int64_t n = shape[axis], inner = shape.Elements(axis + 1, shape.rank());
  for (int64_t k = 0; k < n; ++k) fn((row / inner * n + k) * inner + row % inner);
}

// The gradient of a softmax along an axis sums to zero there, as its outputs sum to one.
TEST(SoftmaxGrad, SumsToZeroAlongTheAxis) {
  const Shape shape{3, 140, 67};  // two runs of terms, and blocks of columns with a rest
  const Tensor x = RandomTensor(shape, 5), dy = RandomTensor(shape, 6);
  for (int axis : {0, 1, 2}) {
    const Tensor y = x.Clone().value(), log_y = x.Clone().value();
    for (int64_t row = 0; row < shape.elements() / shape[axis]; ++row) {
      double total = 0;
      ForEachElementOfARow(shape, axis, row,
                           [&](int64_t i) { total += std::exp(x.data<double>()[i]); });
      ForEachElementOfARow(shape, axis, row, [&](int64_t i) {
        log_y.data<double>()[i] -= std::log(total);
        y.data<double>()[i] = std::exp(log_y.data<double>()[i]);
      });
    }
    const AttributeMap attributes = {{"axis", int64_t{axis}}};
    const auto dx = FirstOutput("SoftmaxGrad", {dy, y}, attributes);
    const auto d_log = RunTrainingKernel("LogSoftmaxGrad", {dy, log_y}, attributes, 1, 2).value();
    for (int64_t row = 0; row < shape.elements() / shape[axis]; ++row) {
      double sum = 0, log_sum = 0;
      ForEachElementOfARow(shape, axis, row,
                           [&](int64_t i) { sum += dx[i], log_sum += d_log[0][i]; });
      ASSERT_NEAR(sum, 0, 1e-12);  // of 140 terms near 1
      ASSERT_NEAR(log_sum, 0, 1e-12);
    }
  }
}

// dX = Y (dY - sum(dY Y)): with Y = (1/4, 3/4) and dY = (4, 8) that sum is 7. A softmax that is
// sure of itself, Y = (0, 1), has no slope.
TEST(SoftmaxGrad, OfTwoByHand) {
  const Tensor dy = Tensor::Of<double>({2, 2}, {4, 8, 4, 8}),
               y = Tensor::Of<double>({2, 2}, {0.25, 0.75, 0, 1});
  ExpectInEveryFloat("SoftmaxGrad", {dy, y}, {}, {{-0.75, 0.75, 0, 0}});
  ExpectInEveryFloat(
      "SoftmaxGrad",
      {Tensor::Of<double>({2, 2}, {4, 4, 8, 8}), Tensor::Of<double>({2, 2}, {0.25, 0, 0.75, 1})},
      {{"axis", int64_t{-2}}}, {{-0.75, 0, 0.75, 0}});
}

TEST(SoftmaxGrad, RefusesAxesAndShapesThatDoNotFit) {
  const Tensor two = Tensor::Of<double>({2}, {1, 2}), pair = two.Reshaped({1, 2});
  for (const char* op : {"SoftmaxGrad", "LogSoftmaxGrad"}) {
    EXPECT_NE(WhyRefused(op, {two, two}, {{"axis", int64_t{1}}}), "") << op;
    EXPECT_THAT(WhyRefused(op, {two, pair}), HasSubstr("dY and Y of one shape")) << op;
  }
}

// Dropped elements get exactly nothing, even of infinity; a ratio of 1 drops all.
TEST(DropoutGrad, ScalesWhatWasKept) {
  const Tensor dy = Tensor::Of<double>({3}, {INFINITY, 4, -8}),
               mask = Tensor::Zeros(DType::kBool, {3});
  mask.data<bool>()[1] = mask.data<bool>()[2] = true;
  ExpectInEveryFloat("DropoutGrad", {dy, mask, Tensor::Scalar(0.75f)}, {}, {{0, 16, -32}});
  ExpectInEveryFloat("DropoutGrad", {dy, mask, Tensor::Scalar(0.0f)}, {}, {{0, 4, -8}});
  ExpectInEveryFloat("DropoutGrad", {dy, mask, {}}, {}, {{0, 8, -16}});  // one half
  EXPECT_THAT(FirstOutput("DropoutGrad", {dy, mask, Tensor::Scalar(1.0f)}), Each(0));
  EXPECT_THAT(WhyRefused("DropoutGrad", {dy, mask.Reshaped({1, 3}), {}}),
              HasSubstr("mask: expected dY's shape"));
  EXPECT_THAT(WhyRefused("DropoutGrad", {dy, mask, FloatVector({0.5f, 0.5f})}),
              HasSubstr("ratio: expected a scalar"));
}

}  // namespace
}  // namespace caesura
