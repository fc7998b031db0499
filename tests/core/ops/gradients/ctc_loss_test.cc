// SPDX-License-Identifier: Apache-2.0
// CtcLoss and its slopes against the sum over all paths, by hand, and of targets that have no path.
#include <cmath>

#include "tests/tensors.h"
#include "tests/core/ops/gradients/training_case.h"

namespace caesura {
namespace {

using ::testing::Each;
using ::testing::HasSubstr;
using ::testing::IsNan;

// Minus the logarithm of the probability of all paths of 4 steps and 3 classes that are the target
// once equal neighbours are one and blanks are gone.
double LossOfAllPaths(const double* log_probs, int64_t blank, const std::vector<int64_t>& target) {
  double sum = 0;
  for (int path = 0; path < 81; ++path) {
    double log_prob = 0;
    std::vector<int64_t> labels;
    int64_t before = blank;
    for (int t = 0, rest = path; t < 4; ++t, rest /= 3) {
      const int64_t label = rest % 3;
      log_prob += log_probs[t * 3 + label];
      if (label != before && label != blank) labels.push_back(label);
      before = label;
    }
    if (labels == target) sum += std::exp(log_prob);
  }
  return -std::log(sum);
}

Tensor LogSoftmaxOfSteps(const Tensor& x) {
  const Tensor out = x.Clone().value();
  for (double* row = out.data<double>(); row != out.data<double>() + x.elements(); row += 3) {
    const double total = std::log(std::exp(row[0]) + std::exp(row[1]) + std::exp(row[2]));
    for (int c = 0; c < 3; ++c) row[c] -= total;
  }
  return out;
}

TEST(CtcLoss, IsThatOfAllPaths) {
  const Tensor scores = RandomTensor({4, 1, 3}, 1), four = IntVector({4});
  const std::pair<int64_t, std::vector<int64_t>> cases[] = {
      {0, {1, 2}}, {0, {1, 1}}, {0, {2}}, {0, {}}, {2, {0, 1, 0}}, {1, {0, 2, 2}}};
  for (const auto& [blank, target] : cases) {
    const auto loss = [&, blank = blank, &target = target](const Tensor& x) {
      return LossOfAllPaths(LogSoftmaxOfSteps(x).data<double>(), blank, target);
    };
    const auto out = RunTrainingKernel("CtcLoss",
                                       {LogSoftmaxOfSteps(scores), IntVector(target), four,
                                        IntVector({static_cast<int64_t>(target.size())})},
                                       {{"blank", blank}}, 2)
                         .value();
    EXPECT_NEAR(out[0][0], loss(scores), 1e-13);  // sums of up to 81 numbers
    EXPECT_THAT(out[1], AreNear(CentralDifferences(scores, loss), 1e-8));
  }
}

// With 1/2 at each step (1, 1), (0, 1) and (1, 0) are the target (1); of one step the empty target
// is (0).
TEST(CtcLoss, OfShorterSamplesByHand) {
  const Tensor halves = Tensor::Of<double>({2, 2, 2}, std::vector<double>(8, std::log(0.5)));
  const auto out =
      RunTrainingKernel("CtcLoss", {halves, IntVector({1}), IntVector({2, 1}), IntVector({1, 0})},
                        {}, 2)
          .value();
  EXPECT_THAT(out[0], AreNear({-std::log(0.75), std::log(2.0)}, 1e-14));
  EXPECT_THAT(out[1], AreNear({1.0 / 6, -1.0 / 6, -0.5, 0.5, 1.0 / 6, -1.0 / 6, 0, 0}, 1e-14));
}

// Equal labels need a blank between them; and no two labels fit into one step.
TEST(CtcLoss, OfATargetThatHasNoPathIsInfinite) {
  const Tensor halves = Tensor::Of<double>({2, 1, 2}, std::vector<double>(4, std::log(0.5)));
  for (const auto& target : {IntVector({1, 1}), IntVector({1, 1, 1})}) {
    const std::vector<RuntimeValue> inputs = {halves, target, IntVector({2}),
                                              IntVector({target.elements()})};
    const auto out = RunTrainingKernel("CtcLoss", inputs, {}, 2).value();
    EXPECT_EQ(out[0][0], INFINITY);
    EXPECT_THAT(out[1], Each(IsNan()));
    EXPECT_THAT(RunTrainingKernel("CtcLoss", inputs, {{"zero_infinity", int64_t{1}}}, 2).value()[1],
                Each(0));
  }
}

TEST(CtcLoss, RefusesLengthsAndLabelsThatAreNotThere) {
  const Tensor x = Tensor::Zeros(DType::kFloat32, {2, 1, 2}), one = IntVector({1}),
               three = IntVector({3});
  EXPECT_THAT(WhyRefused("CtcLoss", {x, one, three, one}, {}, 2),
              HasSubstr("input length from 0 to 2 expected, got 3"));
  EXPECT_THAT(WhyRefused("CtcLoss", {x, one, one, three}, {}, 2),
              HasSubstr("target length from 0 to 1 expected, got 3"));
  EXPECT_THAT(WhyRefused("CtcLoss", {x, three, one, one}, {}, 2),
              HasSubstr("labels from 0 to 1 expected, got 3"));
  EXPECT_THAT(WhyRefused("CtcLoss", {x, one, one, one}, {{"blank", int64_t{2}}}, 2),
              HasSubstr("blank from 0 to 1 expected"));
}

}  // namespace
}  // namespace caesura
