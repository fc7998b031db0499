// SPDX-License-Identifier: Apache-2.0
// Batch normalisation in training by hand, and the gradients of all normalisations against central
// differences of plain loops in double. (Those of losses are in loss_grad_test.cc.)
#include <algorithm>
#include <cmath>

#include "tests/core/ops/gradients/training_case.h"

namespace caesura {
namespace {

using ::testing::HasSubstr;

// A normalisation of X [2, 4, 3]: of element i in row-major order, the run of elements whose
// statistics it shares, and its scale.
struct NormCase {
  const char* op;
  AttributeMap attributes;
  int (*run)(int i);
  int (*scale)(int i);
  Shape scale_shape;
  bool centred = true;
  bool takes_statistics = false;
};

constexpr float kEpsilon = 0.125f;

// Mean and inverse standard deviation of each run.
TrainingOutputs StatisticsOf(const NormCase& c, const Tensor& x) {
  int runs = 0;
  for (int i = 0; i < 24; ++i) runs = std::max(runs, c.run(i) + 1);
  std::vector<double> mean(runs), inv_std(runs);
  const double count = 24.0 / runs, *in = x.data<double>();
  for (int i = 0; c.centred && i < 24; ++i) mean[c.run(i)] += in[i] / count;
  for (int i = 0; i < 24; ++i) inv_std[c.run(i)] += std::pow(in[i] - mean[c.run(i)], 2) / count;
  for (double& variance : inv_std) variance = 1 / std::sqrt(variance + kEpsilon);
  return {mean, inv_std};
}

// The sum of dY times what is normalised and scaled.
double NormLoss(const NormCase& c, const Tensor& dy, const Tensor& x, const Tensor& scale) {
  const TrainingOutputs statistics = StatisticsOf(c, x);
  double sum = 0;
  for (int i = 0; i < 24; ++i) {
    sum += dy.data<double>()[i] * scale.data<double>()[c.scale(i)] *
           (x.data<double>()[i] - statistics[0][c.run(i)]) * statistics[1][c.run(i)];
  }
  return sum;
}

TrainingOutputs NormDifferences(const NormCase& c, const Tensor& dy, const Tensor& x,
                                const Tensor& scale) {
  TrainingOutputs out = {
      CentralDifferences(x, [&](const Tensor& moved) { return NormLoss(c, dy, moved, scale); }),
      CentralDifferences(scale, [&](const Tensor& moved) { return NormLoss(c, dy, x, moved); })};
  if (!c.centred) return out;
  out.emplace_back(scale.elements());  // of the bias
  for (int i = 0; i < 24; ++i) out[2][c.scale(i)] += dy.data<double>()[i];
  return out;
}

void ExpectNormDifferences(const NormCase& c) {
  const Tensor dy = RandomTensor({2, 4, 3}, 1), x = RandomTensor({2, 4, 3}, 2),
               scale = RandomTensor(c.scale_shape, 3);
  const TrainingOutputs expected = NormDifferences(c, dy, x, scale);
  AttributeMap attributes = c.attributes;
  attributes["epsilon"] = kEpsilon;
  for (const DType dtype : {DType::kFloat64, DType::kFloat32}) {
    std::vector<RuntimeValue> inputs = {InDType(dy, dtype), InDType(x, dtype),
                                        InDType(scale, dtype)};
    for (const auto& statistic : StatisticsOf(c, x)) {
      const Shape runs{static_cast<int64_t>(statistic.size())};
      if (c.takes_statistics) inputs.push_back(InDType(Tensor::Of<double>(runs, statistic), dtype));
    }
    const auto out = RunTrainingKernel(c.op, inputs, attributes, c.centred ? 3 : 2, 2);
    ASSERT_TRUE(out.ok()) << out.status().ToString();
    // Sums of up to 24 numbers near 1; those of float have 24 bits.
    const double tolerance = dtype == DType::kFloat64 ? 1e-8 : 1e-5;
    for (size_t i = 0; i < expected.size(); ++i)
      EXPECT_THAT((*out)[i], AreNear(expected[i], tolerance)) << c.op << " output " << i;
  }
}

TEST(NormalizationGrads, EqualDifferences) {
  const auto channel = [](int i) { return i / 3 % 4; };
  const auto row = [](int i) { return i / 3; };
  const auto column = [](int i) { return i % 3; };
  const auto pair = [](int i) { return i / 6; };
  const auto sample = [](int i) { return i / 12; };
  const auto place = [](int i) { return i % 12; };
  const AttributeMap axis = {{"axis", int64_t{1}}}, groups = {{"num_groups", int64_t{2}}};
  const NormCase cases[] = {
      {"BatchNormalizationGrad", {}, channel, channel, {4}, true, true},
      {"InstanceNormalizationGrad", {}, row, channel, {4}},
      {"GroupNormalizationGrad", groups, pair, channel, {4}},
      {"LayerNormalizationGrad", {}, row, column, {3}, true, true},
      {"LayerNormalizationGrad", axis, sample, place, {4, 3}, true, true},
      {"LayerNormalizationGrad", axis, sample, channel, {4, 1}, true, true},
      {"RMSNormalizationGrad", {}, row, column, {3}, false},
      {"RMSNormalizationGrad", axis, sample, column, {3}, false},
  };
  for (const NormCase& c : cases) ExpectNormDifferences(c);
}

// Without deviation the normalised row is 0 and 1 / sqrt(epsilon) is 2.
TEST(NormalizationGrads, OfARowThatIsConstant) {
  const Tensor dy = Tensor::Of<double>({1, 1, 2}, {1, 3}),
               x = Tensor::Of<double>({1, 1, 2}, {5, 5}), scale = Tensor::Of<double>({1}, {4}),
               mean = Tensor::Of<double>({1}, {5}), inv_std = Tensor::Of<double>({1}, {2});
  const AttributeMap attributes = {{"epsilon", 0.25f}, {"num_groups", int64_t{1}}};
  const TrainingOutputs expected = {{-8, 8}, {0}, {4}};
  for (const char* op : {"InstanceNormalizationGrad", "GroupNormalizationGrad"})
    ExpectInEveryFloat(op, {dy, x, scale}, attributes, expected);
  for (const char* op : {"BatchNormalizationGrad", "LayerNormalizationGrad"})
    ExpectInEveryFloat(op, {dy, x, scale, mean, inv_std}, attributes, expected);
  ExpectInEveryFloat("RMSNormalizationGrad", {dy, Tensor::Zeros(DType::kFloat64, {1, 1, 2}), scale},
                     attributes, {{8, 24}, {0}});
}

// Both channels have variance 1: with an epsilon of 3 their deviation is 2.
TEST(BatchNormalizationTraining, OfTwoSamplesByHand) {
  const std::vector<RuntimeValue> inputs = {
      Tensor::Of<double>({2, 2}, {1, 5, 3, 7}), Tensor::Of<double>({2}, {2, 4}),
      Tensor::Of<double>({2}, {1, -1}), Tensor::Of<double>({2}, {10, 20}),
      Tensor::Of<double>({2}, {4, 8})};
  AttributeMap attributes = {{"epsilon", 3.0f}, {"momentum", 0.5f}};
  ExpectInEveryFloat("BatchNormalizationTraining", inputs, attributes,
                     {{0, -3, 2, 1}, {6, 13}, {3, 5}, {2, 6}, {0.5, 0.5}});
  attributes["unbiased"] = int64_t{0};
  ExpectInEveryFloat("BatchNormalizationTraining", inputs, attributes,
                     {{0, -3, 2, 1}, {6, 13}, {2.5, 4.5}, {2, 6}, {0.5, 0.5}});
}

TEST(NormalizationGrads, RefuseWhatDoesNotFit) {
  const Tensor x = RandomTensor({2, 4, 3}, 1), four = RandomTensor({4}, 2);
  EXPECT_THAT(WhyRefused("GroupNormalizationGrad", {x, x, four}, {{"num_groups", int64_t{3}}}),
              HasSubstr("num_groups must divide the channels"));
  EXPECT_THAT(WhyRefused("InstanceNormalizationGrad", {four, x, four}), HasSubstr("of one shape"));
  EXPECT_THAT(WhyRefused("RMSNormalizationGrad", {four, x, four}), HasSubstr("dY of X's shape"));
  EXPECT_THAT(WhyRefused("LayerNormalizationGrad", {x, x, four, four, four}),
              HasSubstr("must broadcast to X"));
  EXPECT_THAT(WhyRefused("LayerNormalizationGrad", {x, x, RandomTensor({3}, 3), four, four}),
              HasSubstr("one float element a row expected"));
  EXPECT_NE(WhyRefused("BatchNormalizationGrad", {x, x, four, x, x}), "");
}

}  // namespace
}  // namespace caesura
