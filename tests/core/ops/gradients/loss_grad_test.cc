// SPDX-License-Identifier: Apache-2.0
// The gradients of losses by hand, also of labels that are ignored, and CtcLoss against the sum
// over all paths.
#include <cmath>

#include "tests/tensors.h"
#include "tests/core/ops/gradients/training_case.h"

namespace caesura {
namespace {

using ::testing::Each;
using ::testing::HasSubstr;

const Attribute kIgnored = int64_t{-7};

// Softmax (1/4, 3/4), an ignored sample, whose scores do not matter, and (1/2, 1/2).
std::vector<RuntimeValue> ScoreInputs(const Tensor& d_loss, RuntimeValue weights = {}) {
  return {d_loss, Tensor::Of<double>({3, 2}, {0, std::log(3.0), NAN, 5, 1, 1}),
          IntVector({0, -7, 1}), std::move(weights),
          Tensor::Of<double>({3}, {std::log(4.0), NAN, 1 + std::log(2.0)})};
}

TEST(SoftmaxCrossEntropyLossGrad, LeavesOutIgnoredSamples) {
  const Tensor four = Tensor::Scalar(4.0), weights = Tensor::Of<double>({2}, {3, 1});
  const auto run = [](const std::vector<RuntimeValue>& inputs, const char* reduction) {
    return FirstOutput("SoftmaxCrossEntropyLossGrad", inputs,
                       {{"ignore_index", kIgnored}, {"reduction", Text(reduction)}});
  };
  // Exponentials of numbers that are rounded.
  EXPECT_THAT(run(ScoreInputs(four), "mean"), AreNear({-1.5, 1.5, 0, 0, 1, -1}, 1e-14));
  EXPECT_THAT(run(ScoreInputs(four, weights), "mean"),  // of a weight of 4
              AreNear({-2.25, 2.25, 0, 0, 0.5, -0.5}, 1e-14));
  EXPECT_THAT(run(ScoreInputs(four, weights), "sum"), AreNear({-9, 9, 0, 0, 2, -2}, 1e-14));
  EXPECT_THAT(run(ScoreInputs(Tensor::Of<double>({3}, {4, NAN, 8})), "none"),
              AreNear({-3, 3, 0, 0, 4, -4}, 1e-14));
  std::vector<RuntimeValue> all = ScoreInputs(four);
  all[2] = IntVector({-7, -7, -7});
  EXPECT_THAT(run(all, "mean"), Each(0));  // the mean of nothing
}

// The same two samples side by side, and rounded to a half.
TEST(SoftmaxCrossEntropyLossGrad, OfPositionsAndInHalves) {
  const float log3 = std::log(3.0f);
  const std::vector<RuntimeValue> inputs = {
      Tensor::Scalar(8.0f),
      Tensor::Of<float>({1, 2, 2}, {0, 1, log3, 1}),
      Tensor::Of<int32_t>({1, 2}, {0, 1}),
      {},
      Tensor::Of<float>({1, 2}, {std::log(4.0f), 1 + std::log(2.0f)})};
  const std::vector<double> expected = {-3, 2, 3, -2};
  EXPECT_THAT(FirstOutput("SoftmaxCrossEntropyLossGrad", inputs), AreNear(expected, 2e-6));
  EXPECT_THAT(FirstOutput("SoftmaxCrossEntropyLossGrad", inputs,
                          {{"dtype", static_cast<int64_t>(DType::kBFloat16)}}),
              AreNear(expected, 0));
}

TEST(NegativeLogLikelihoodLossGrad, IsTheWeightAtTheLabel) {
  const Tensor four = Tensor::Scalar(4.0), weights = Tensor::Of<double>({2}, {3, 1}),
               labels = IntVector({0, -7, 1}), dims = IntVector({3, 2});
  AttributeMap attributes = {{"ignore_index", kIgnored}};
  const char* op = "NegativeLogLikelihoodLossGrad";
  ExpectInEveryFloat(op, {four, labels, {}, dims}, attributes, {{-2, 0, 0, 0, 0, -2}});
  ExpectInEveryFloat(op, {four, labels, weights, dims}, attributes, {{-3, 0, 0, 0, 0, -1}});
  attributes["reduction"] = Text("none");
  ExpectInEveryFloat(op, {Tensor::Of<double>({3}, {1, NAN, 2}), labels, weights, dims}, attributes,
                     {{-3, 0, 0, 0, 0, -2}});
}

TEST(LossGrads, RefuseLabelsOutsideOfTheClasses) {
  EXPECT_THAT(WhyRefused("SoftmaxCrossEntropyLossGrad", ScoreInputs(Tensor::Scalar(4.0))),
              HasSubstr("label -7 is outside [0, 2)"));
  const Tensor labels = IntVector({0, 2, 1}), one = Tensor::Scalar(1.0f), dims = IntVector({3, 2});
  EXPECT_THAT(WhyRefused("NegativeLogLikelihoodLossGrad", {one, labels, {}, dims}),
              HasSubstr("label 2 is outside [0, 2)"));
  EXPECT_THAT(WhyRefused("NegativeLogLikelihoodLossGrad", {one, labels, {}, dims},
                         {{"reduction", Text("none")}}),
              HasSubstr("dLoss of shape [3] expected, got []"));
}

}  // namespace
}  // namespace caesura
