// SPDX-License-Identifier: Apache-2.0
// Kernels of integers that compute in floats: their results are converted as Cast converts them.
// ONNX leaves open what an integer cannot hold; a sanitizer finds a conversion that C++ leaves
// open.
#include <gtest/gtest.h>

#include <limits>

#include "tests/kernel_case.h"
#include "tests/tensors.h"

namespace caesura {
namespace {

constexpr int32_t kLeast = std::numeric_limits<int32_t>::lowest(),
                  kMost = std::numeric_limits<int32_t>::max();

template <typename T>
std::vector<T> ResultsOf(KernelCase node) {
  return node.Run().value()[0].tensor().ToVector<T>();
}

std::vector<int32_t> RunGemm(int32_t x, std::vector<int32_t> w, float alpha, float beta = 0) {
  const int64_t columns = static_cast<int64_t>(w.size());
  return ResultsOf<int32_t>(
      KernelCase("Gemm",
                 {Tensor::Of<int32_t>({1, 1}, {x}), Tensor::Of<int32_t>({1, columns}, w),
                  Tensor::Of<int32_t>({1, columns}, w)},
                 {{"alpha", alpha}, {"beta", beta}}));
}

TEST(IntegerResults, GemmScalesInDouble) {
  // 3 * 16777217 has more digits than a float.
  EXPECT_EQ(RunGemm(3, {16777217, -5}, 2.0f), (std::vector<int32_t>{100663302, -30}));
  EXPECT_EQ(RunGemm(1, {16777217, -5}, 0.5f, 1.5f), (std::vector<int32_t>{33554433, -9}));
  EXPECT_EQ(RunGemm(1, {kMost, 7}, 3.0f), (std::vector<int32_t>{kLeast, 21}));
  EXPECT_EQ(RunGemm(1, {1, 7}, kNaN), (std::vector<int32_t>{0, 0}));
  EXPECT_EQ(RunGemm(1, {kMost, 7}, 1.0f, 4.0f)[1], 35);
}

TEST(IntegerResults, ReduceL2BeyondTheType) {
  const auto norm = [](const Tensor& x) {
    return ResultsOf<int32_t>(KernelCase("ReduceL2", {x}))[0];
  };
  EXPECT_EQ(norm(Tensor::Of<int32_t>({2}, {3, -4})), 5);
  EXPECT_EQ(norm(Tensor::Of<int32_t>({2}, {kMost, kMost})), kLeast);
}

TEST(IntegerResults, ShrinkOfLargeNumbers) {
  const auto shrink = [](const Tensor& x, float bias) {
    return ResultsOf<uint64_t>(KernelCase("Shrink", {x}, {{"lambd", 0.0f}, {"bias", bias}}))[0];
  };
  const uint64_t large = uint64_t{3} << 62;
  EXPECT_EQ(shrink(Tensor::Of<uint64_t>({1}, {large}), 0.0f), large);
  EXPECT_EQ(shrink(Tensor::Of<uint64_t>({1}, {large}), kNaN), 0u);
}

TEST(IntegerResults, OneHotOfAnyFloat) {
  const auto one_hot = [](float index, float depth) {
    return KernelCase("OneHot", {Tensor::Of<float>({1}, {index}), Tensor::Scalar<float>(depth),
                                 Tensor::Of<int32_t>({2}, {0, 1})})
        .Run();
  };
  EXPECT_EQ(one_hot(1.5f, 2.5f).value()[0].tensor().ToVector<int>(), (std::vector<int>{0, 1}));
  EXPECT_EQ(one_hot(1e30f, 2).value()[0].tensor().ToVector<int>(), (std::vector<int>{0, 0}));
  EXPECT_EQ(one_hot(kNaN, 2).value()[0].tensor().ToVector<int>(), (std::vector<int>{1, 0}));
  for (float depth : {-1.0f, 1e30f, kNaN})
    EXPECT_EQ(one_hot(0, depth).status().code(), StatusCode::kInvalidArgument) << depth;
}

}  // namespace
}  // namespace caesura
