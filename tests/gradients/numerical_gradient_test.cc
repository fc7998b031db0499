// SPDX-License-Identifier: Apache-2.0
// Every gradient rule against central differences of the double kernels, and the float kernels
// against the double ones.
#include <gtest/gtest.h>

#include <cmath>

#include "tests/gradients/gradient_check.h"

namespace caesura {
namespace {

struct Tolerance {
  double epsilon, absolute, relative;
};
constexpr Tolerance kDouble = {1e-6, 1e-5, 1e-3}, kFloat = {1e-2, 1e-2, 2e-2};

std::vector<GradientCase> Cases(bool with_float_only) {
  std::vector<GradientCase> out;
  for (GradientCase& c : AllGradientCases()) {
    if (with_float_only || c.no_double.empty()) out.push_back(std::move(c));
  }
  return out;
}

std::string NameOf(const ::testing::TestParamInfo<GradientCase>& info) { return info.param.name; }

class Gradient : public ::testing::TestWithParam<GradientCase> {};

TEST_P(Gradient, MatchesDifferences) {
  const GradientCase& c = GetParam();
  const DType dtype = c.no_double.empty() ? DType::kFloat64 : DType::kFloat32;
  const Tolerance tolerance = c.no_double.empty() ? kDouble : kFloat;
  CaseRun run = RunForward(c, dtype).value();
  const Status status = RunBackward(c, dtype, &run);
  ASSERT_TRUE(status.ok()) << status.ToString();
  EXPECT_EQ(run.reachable, c.has_gradient);
  const std::vector<std::vector<double>> expected = Differences(run, tolerance.epsilon);
  for (size_t k = 0; k < expected.size(); ++k) {
    for (size_t i = 0; i < expected[k].size(); ++i) {
      const double allowed = tolerance.absolute + tolerance.relative * std::abs(expected[k][i]);
      EXPECT_NEAR(run.gradients[k][i], expected[k][i], allowed)
          << "d" << run.xs[k] << "[" << i << "]";
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Rules, Gradient, ::testing::ValuesIn(Cases(/*with_float_only=*/true)),
                         NameOf);

class GradientInFloat : public ::testing::TestWithParam<GradientCase> {};

TEST_P(GradientInFloat, MatchesDouble) {
  const GradientCase& c = GetParam();
  CaseRun expected = RunForward(c, DType::kFloat64, DType::kFloat32).value();
  CaseRun found = RunForward(c, DType::kFloat32, DType::kFloat32).value();
  ASSERT_TRUE(RunBackward(c, DType::kFloat64, &expected, DType::kFloat32).ok());
  ASSERT_TRUE(RunBackward(c, DType::kFloat32, &found, DType::kFloat32).ok());
  for (size_t k = 0; k < expected.gradients.size(); ++k) {
    const double scale = ScaleOf(expected.gradients[k]);
    for (size_t i = 0; i < expected.gradients[k].size(); ++i) {
      EXPECT_NEAR(found.gradients[k][i], expected.gradients[k][i], c.float_tolerance * scale)
          << "d" << found.xs[k] << "[" << i << "]";
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Rules, GradientInFloat,
                         ::testing::ValuesIn(Cases(/*with_float_only=*/false)), NameOf);

}  // namespace
}  // namespace caesura
