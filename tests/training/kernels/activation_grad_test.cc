// SPDX-License-Identifier: Apache-2.0
// SumTo against sums by index arithmetic, and what the gradients of activations promise of each
// other. Numerical checks of the rules that use them are in tests/gradients.
#include <gtest/gtest.h>

#include <cmath>
#include <random>

#include "core/kernels/cpu/elementwise/kernel_list.h"
#include "tests/kernel_case.h"
#include "training/kernels/training_ops.h"

namespace caesura {
namespace {

Tensor RandomTensor(const Shape& shape, int seed) {
  std::mt19937 random(seed);
  std::normal_distribution<double> normal;
  const Tensor out = Tensor::Zeros(DType::kFloat64, shape);
  for (int64_t i = 0; i < shape.elements(); ++i) out.data<double>()[i] = normal(random);
  return out;
}

Result<Tensor> RunKernel(const char* op_type, std::vector<RuntimeValue> inputs,
                         AttributeMap attributes = {}, int threads = 1) {
  KernelCase node(op_type, std::move(inputs), std::move(attributes), kTrainingDomain);
  node.threads = threads;
  ASSIGN_OR_RETURN(std::vector<RuntimeValue> out, node.Run(RegisterTrainingKernels));
  return out[0].tensor();
}

Result<Tensor> SumTo(const Tensor& dy, const Shape& shape, int threads) {
  return RunKernel("SumTo", {dy, Tensor::Of<int64_t>({shape.rank()}, shape.dims())}, {}, threads);
}

std::vector<double> ExpectedSum(const Tensor& dy, const Shape& shape) {
  std::vector<double> out(shape.elements(), 0.0);
  for (int64_t i = 0; i < dy.elements(); ++i) {
    int64_t rest = i, offset = 0, stride = 1;
    for (int d = dy.shape().rank() - 1; d >= 0; --d) {
      const int own = d - (dy.shape().rank() - shape.rank());
      if (own >= 0 && shape[own] != 1) offset += rest % dy.shape()[d] * stride;
      if (own >= 0) stride *= shape[own];
      rest /= dy.shape()[d];
    }
    out[offset] += dy.data<double>()[i];
  }
  return out;
}

TEST(SumTo, AddsWhatBroadcastingExpanded) {
  const std::vector<std::pair<Shape, Shape>> cases = {
      {{4, 5}, {5}},          {{4, 5}, {4, 1}},          {{4, 5}, {}},
      {{4, 5}, {1, 1}},       {{2, 3, 4, 5}, {3, 1, 5}}, {{2, 3, 4, 5}, {2, 1, 4, 1}},
      {{0, 3}, {3}},          {{3, 0}, {3, 1}},          {{300, 400}, {400}},
      {{300, 400}, {300, 1}}, {{300, 400}, {}},          {{7, 64, 100}, {64, 1}}};
  for (const auto& [from, to] : cases) {
    const Tensor dy = RandomTensor(from, 3);
    const std::vector<double> expected = ExpectedSum(dy, to);
    for (int threads : {1, 2, 3}) {
      const Tensor dx = SumTo(dy, to, threads).value();
      ASSERT_EQ(dx.shape(), to);
      for (size_t i = 0; i < expected.size(); ++i)
        ASSERT_NEAR(dx.data<double>()[i], expected[i], 1e-10);
    }
  }
}

TEST(SumTo, CopiesOrSharesWhereNothingWasExpanded) {
  const Tensor dy = RandomTensor({1, 3}, 4);
  EXPECT_EQ(SumTo(dy, {3}, 1).value().ToVector<double>(), dy.ToVector<double>());
  EXPECT_FALSE(SumTo(dy, {2}, 1).ok());
  EXPECT_FALSE(SumTo(dy, {1, 3, 1}, 1).ok());
}

// The gradient of a softmax along an axis sums to zero there, as its outputs sum to one.
TEST(SoftmaxGrad, SumsToZeroAlongTheAxis) {
  const Shape shape{3, 20, 17};
  const Tensor x = RandomTensor(shape, 5), dy = RandomTensor(shape, 6);
  for (int64_t axis : {0, 1, 2}) {
    const int64_t n = shape[static_cast<int>(axis)],
                  inner = shape.Elements(static_cast<int>(axis) + 1, 3);
    const Tensor y = Tensor::Zeros(DType::kFloat64, shape),
                 log_y = Tensor::Zeros(DType::kFloat64, shape);
    for (int64_t row = 0; row < shape.elements() / n; ++row) {
      const int64_t at = row / inner * n * inner + row % inner;
      double total = 0;
      for (int64_t k = 0; k < n; ++k) total += std::exp(x.data<double>()[at + k * inner]);
      for (int64_t k = 0; k < n; ++k) {
        log_y.data<double>()[at + k * inner] = x.data<double>()[at + k * inner] - std::log(total);
        y.data<double>()[at + k * inner] = std::exp(log_y.data<double>()[at + k * inner]);
      }
    }
    const Tensor dx = RunKernel("SoftmaxGrad", {dy, y}, {{"axis", axis}}).value();
    const Tensor d_log = RunKernel("LogSoftmaxGrad", {dy, log_y}, {{"axis", axis}}, 2).value();
    for (int64_t row = 0; row < shape.elements() / n; ++row) {
      const int64_t at = row / inner * n * inner + row % inner;
      double sum = 0, log_sum = 0;
      for (int64_t k = 0; k < n; ++k)
        sum += dx.data<double>()[at + k * inner], log_sum += d_log.data<double>()[at + k * inner];
      ASSERT_NEAR(sum, 0, 1e-12);
      ASSERT_NEAR(log_sum, 0, 1e-12);
    }
  }
}

// Both forms of Gelu, numerically.
TEST(GeluGrad, FollowsTheForwardKernel) {
  const Tensor x = RandomTensor({200}, 7),
               ones = Tensor::Of<double>({200}, std::vector<double>(200, 1.0));
  for (const char* approximate : {"none", "tanh"}) {
    const AttributeMap attributes = {{"approximate", std::string(approximate)}};
    auto forward = [&](double shift) {
      const Tensor moved = x.Clone().value();
      for (int i = 0; i < 200; ++i) moved.data<double>()[i] += shift;
      KernelCase gelu("Gelu", {moved}, attributes);
      return gelu.Run(RegisterElementwiseKernels).value()[0].tensor();
    };
    const Tensor above = forward(1e-6), below = forward(-1e-6);
    const Tensor dx = RunKernel("GeluGrad", {ones, x}, attributes).value();
    for (int i = 0; i < 200; ++i) {
      EXPECT_NEAR(dx.data<double>()[i], (above.data<double>()[i] - below.data<double>()[i]) / 2e-6,
                  1e-8);
    }
  }
}

TEST(DropoutGrad, ScalesWhatWasKept) {
  const Tensor dy = Tensor::Of<float>({2}, {3, 4}), mask = Tensor::Zeros(DType::kBool, {2});
  mask.data<bool>()[1] = true;
  const Tensor dx = RunKernel("DropoutGrad", {dy, mask, Tensor::Scalar(0.75f)}).value();
  EXPECT_EQ(dx.ToVector<float>(), (std::vector<float>{0, 16}));
}

}  // namespace
}  // namespace caesura
