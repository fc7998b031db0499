// SPDX-License-Identifier: Apache-2.0
#include <gtest/gtest.h>

#include <bit>
#include <cmath>
#include <random>

#include "tests/kernel_case.h"

namespace caesura {
namespace {

RuntimeValue RunOne(const char* op, std::vector<RuntimeValue> inputs, AttributeMap attributes = {},
                    int threads = 1) {
  KernelCase node(op, std::move(inputs), std::move(attributes), kCaesuraDomain);
  node.threads = threads;
  return node.Run().value()[0];
}

double Scalar(const RuntimeValue& value) { return value.tensor().ToVector<double>()[0]; }

TEST(GlobalNorm, IsTheRootOfAllSquares) {
  const Tensor a = Tensor::Of<float>({2, 2}, {1, 2, 3, 4}), b = Tensor::Of<float>({}, {5});
  const RuntimeValue norm = RunOne("GlobalNorm", {a, b, Tensor::Zeros(DType::kFloat32, Shape{0})});
  EXPECT_EQ(norm.tensor().dtype(), DType::kFloat32);
  EXPECT_FLOAT_EQ(Scalar(norm), std::sqrt(55.0f));
  EXPECT_EQ(RunOne("GlobalNorm", {Tensor::Of<double>({1}, {3}), Tensor::Of<double>({1}, {4})})
                .tensor()
                .dtype(),
            DType::kFloat64);
  EXPECT_FLOAT_EQ(Scalar(RunOne("GlobalNorm", {Tensor::Of<BFloat16>({2}, {3.0f, 4.0f}), b})),
                  std::sqrt(50.0f));
}

TEST(GlobalNorm, DoesNotDependOnThreadsAndSumsInDouble) {
  const int64_t count = 300007;
  const Tensor ones = Tensor::Of<float>({count}, std::vector<float>(count, 0.1f));
  const double one = Scalar(RunOne("GlobalNorm", {ones, ones}));
  EXPECT_EQ(one, Scalar(RunOne("GlobalNorm", {ones, ones}, {}, 3)));
  EXPECT_FLOAT_EQ(one, std::sqrt(2.0 * static_cast<double>(count)) * 0.1f);
}

TEST(GlobalNorm, ShowsWhatIsNotFinite) {
  EXPECT_TRUE(std::isnan(Scalar(RunOne("GlobalNorm", {Tensor::Of<float>({2}, {1, NAN})}))));
  EXPECT_TRUE(std::isinf(Scalar(RunOne("GlobalNorm", {Tensor::Of<float>({2}, {1, INFINITY})}))));
}

TEST(ClipScale, FollowsTorch) {
  auto scale = [](double norm, double factor, AttributeMap attributes = {}) {
    return Scalar(RunOne(
        "ClipScale", {Tensor::Scalar<double>(norm), Tensor::Scalar<double>(factor)}, attributes));
  };
  const Attribute limit = Tensor::Scalar<double>(2);
  EXPECT_EQ(scale(1, 1, {{"max_norm", limit}}), 1);
  EXPECT_DOUBLE_EQ(scale(10, 1, {{"max_norm", limit}}), 2 / (10 + 1e-6));
  EXPECT_DOUBLE_EQ(scale(10, 0.5, {{"max_norm", limit}}), 0.5 * 2 / (5 + 1e-6));
  EXPECT_EQ(scale(1e30, 0.25), 0.25);  // no limit
  EXPECT_EQ(scale(INFINITY, 1, {{"max_norm", limit}}), 0);
  EXPECT_TRUE(std::isnan(scale(NAN, 1, {{"max_norm", limit}})));
  EXPECT_TRUE(
      std::isnan(scale(INFINITY, 1, {{"max_norm", limit}, {"skip_nonfinite", int64_t{1}}})));
}

TEST(InPlaceAccumulator, AddsOrStartsAnew) {
  for (bool share : {true, false}) {
    for (bool reset : {true, false}) {
      const Tensor buffer = Tensor::Of<float>({2}, {1, 2}),
                   value = Tensor::Of<float>({2}, {10, 20});
      KernelCase node("InPlaceAccumulator", {buffer, value, Tensor::Scalar<bool>(reset)}, {},
                      kCaesuraDomain);
      node.share_in_place = share;
      const Tensor out = node.Run().value()[0].tensor();
      EXPECT_EQ(out.ToVector<float>(),
                (reset ? std::vector<float>{10, 20} : std::vector<float>{11, 22}));
      EXPECT_EQ(out.raw() == node.inputs[0].tensor().raw(), share);
    }
  }
}

// Elements [first, first + count) in a binary tree: the largest power of two first.
float SumOfTree(const std::vector<float>& values, size_t first, size_t count) {
  if (count == 1) return values[first];
  const size_t left = std::bit_floor(count - 1);
  return SumOfTree(values, first, left) + SumOfTree(values, first + left, count - left);
}

TEST(PairwiseSum, IsABinaryTreeOfAnyNumberOfValues) {
  std::mt19937 random(1);
  int other_than_in_sequence = 0;
  for (int count = 2; count <= 20; ++count) {
    std::vector<float> values;
    for (int i = 0; i < count; ++i)
      values.push_back(static_cast<float>(random() % 1000) / 7 * (random() % 3 == 0 ? 1e4f : 1));
    const int levels = std::bit_width(static_cast<unsigned>(count - 1));
    for (const bool share : {true, false}) {
      RuntimeValue buffer = Tensor::Of<float>(Shape{levels, 1}, std::vector<float>(levels, NAN));
      for (int i = 0; i < count; ++i) {
        const bool ends = i + 1 == count;
        KernelCase node(
            ends ? "PairwiseSum" : "PairwiseAccumulator",
            {buffer, Tensor::Of<float>(Shape{1}, {values[i]}), Tensor::Scalar<int64_t>(i)}, {},
            kCaesuraDomain);
        node.share_in_place = share;
        buffer = node.Run().value()[0];
      }
      EXPECT_EQ(Scalar(buffer), SumOfTree(values, 0, count)) << count << " values";
    }
    float sum = 0;
    for (const float value : values) sum += value;
    other_than_in_sequence += sum != SumOfTree(values, 0, count);
  }
  EXPECT_GT(other_than_in_sequence, 0);
}

TEST(PairwiseSum, RefusesMoreValuesThanItsLevelsHold) {
  for (const bool ends : {false, true}) {
    KernelCase node(ends ? "PairwiseSum" : "PairwiseAccumulator",
                    {Tensor::Zeros(DType::kFloat32, Shape{2, 1}), Tensor::Of<float>(Shape{1}, {1}),
                     Tensor::Scalar<int64_t>(ends ? 4 : 3)},
                    {}, kCaesuraDomain);
    EXPECT_NE(node.Run().status().message().find("has no place in 2"), std::string::npos);
  }
}

TEST(Assign, CopiesIntoTheTarget) {
  const Tensor target = Tensor::Of<int64_t>({2}, {1, 2});
  KernelCase node("Assign", {target, Tensor::Of<int64_t>({2}, {3, 4})}, {}, kCaesuraDomain);
  ASSERT_TRUE(node.Run().ok());
  EXPECT_EQ(target.ToVector<int64_t>(), (std::vector<int64_t>{3, 4}));
}

}  // namespace
}  // namespace caesura
