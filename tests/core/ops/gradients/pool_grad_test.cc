// SPDX-License-Identifier: Apache-2.0
// The gradients of pooling by hand: equal elements, windows that overlap, padding and what hangs
// over.
#include <cmath>

#include "tests/core/ops/gradients/training_case.h"

namespace caesura {
namespace {

using ::testing::HasSubstr;

AttributeMap OfWindow(std::vector<int64_t> kernel, std::vector<int64_t> strides = {1},
                      std::vector<int64_t> pads = {0, 0}) {
  return {{"kernel_shape", kernel}, {"strides", strides}, {"pads", pads}};
}

TEST(MaxPoolGrad, GoesToTheFirstOfEqualsAndAddsUp) {
  const Tensor dy = Tensor::Of<double>({1, 1, 3}, {1, 16, 128});
  const auto run = [&](std::vector<double> x, std::vector<double> dx) {
    ExpectInEveryFloat("MaxPoolGrad", {dy, Tensor::Of<double>({1, 1, 4}, x)}, OfWindow({2}), {dx});
  };
  run({1, 3, 3, 2}, {0, 17, 128, 0});
  run({0, 1, 5, 5}, {0, 1, 16 + 128, 0});
  run({-INFINITY, -INFINITY, -INFINITY, 0}, {1, 16, 0, 128});
  run({9, NAN, 1, 2}, {0, 17, 0, 128});  // NaN is a window's maximum
}

// Windows of 2 over (0, a, b, 0): a's and b's shares are wholes or halves.
TEST(AveragePoolGrad, SharesWithPaddingOrWithout) {
  const Tensor dy = Tensor::Of<double>({1, 1, 3}, {2, 4, 8}),
               x = Tensor::Of<double>({1, 1, 2}, {7, 7});
  AttributeMap attributes = OfWindow({2}, {1}, {1, 1});
  ExpectInEveryFloat("AveragePoolGrad", {dy, x}, attributes, {{2 + 2, 2 + 8}});
  attributes["count_include_pad"] = int64_t{1};
  ExpectInEveryFloat("AveragePoolGrad", {dy, x}, attributes, {{1 + 2, 2 + 4}});
}

// The last window reaches past the end, where nothing is counted, padding or not.
TEST(AveragePoolGrad, OfAWindowThatOverhangs) {
  for (const int64_t include_pad : {0, 1}) {
    AttributeMap attributes = OfWindow({2}, {2});
    attributes["ceil_mode"] = int64_t{1};
    attributes["count_include_pad"] = include_pad;
    ExpectInEveryFloat(
        "AveragePoolGrad",
        {Tensor::Of<double>({1, 1, 2}, {2, 4}), Tensor::Zeros(DType::kFloat64, {1, 1, 3})},
        attributes, {{1, 1, 4}});
  }
}

// dX = dY sign(X) (|X| / Y)^(p - 1), with Y = 5 of (3, -4) for p = 2; of zeros there is none.
TEST(LpPoolGrad, IsTheNormalisedInput) {
  const Tensor x = Tensor::Of<double>({1, 1, 4}, {3, -4, 0, 0}),
               dy = Tensor::Of<double>({1, 1, 2}, {10, 1});
  const auto of_two =
      FirstOutput("LpPoolGrad", {dy, x, Tensor::Of<double>({1, 1, 2}, {5, 0})}, OfWindow({2}, {2}));
  EXPECT_THAT(of_two, AreNear({6, -8, 0, 0}, 1e-14));
  AttributeMap absolute = OfWindow({2}, {2});
  absolute["p"] = int64_t{1};
  ExpectInEveryFloat("LpPoolGrad", {dy, x, Tensor::Of<double>({1, 1, 2}, {7, 0})}, absolute,
                     {{10, -10, 0, 0}});
}

TEST(GlobalMaxPoolGrad, GoesToTheFirstOfEqualsInEachChannel) {
  const Tensor x = Tensor::Of<double>({1, 3, 3}, {1, 3, 3, -1, -1, -2, 5, NAN, 9});
  ExpectInEveryFloat("GlobalMaxPoolGrad", {Tensor::Of<double>({1, 3, 1}, {1, 2, 4}), x}, {},
                     {{0, 1, 0, 2, 0, 0, 0, 4, 0}});
}

TEST(PoolGrads, RefuseGradientsOfAnotherShape) {
  const Tensor x = Tensor::Of<double>({1, 1, 4}, {1, 2, 3, 4});
  for (const char* op : {"MaxPoolGrad", "AveragePoolGrad"}) {
    EXPECT_THAT(WhyRefused(op, {x, x}, OfWindow({2})),
                HasSubstr("dY of shape [1, 1, 3] expected, got [1, 1, 4]"));
  }
  EXPECT_THAT(WhyRefused("LpPoolGrad", {x, x, x.Reshaped({1, 4, 1})}, OfWindow({1})),
              HasSubstr("Y of dY's shape"));
  EXPECT_THAT(WhyRefused("GlobalMaxPoolGrad", {x, x}), HasSubstr("one element a channel"));
}

}  // namespace
}  // namespace caesura
