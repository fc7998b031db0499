// SPDX-License-Identifier: Apache-2.0
// Each gradient rule's own gradient: against central differences of the first one, and the ops that
// have none, by name.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <set>

#include "tests/gradients/gradient_check.h"

namespace caesura {
namespace {

// The ops that have no second derivative, as errors name them.
const std::set<std::string> kNoSecondDerivatives = {
    "CtcLoss",  // its slopes are an output, and are not differentiated again
    "GRUGrad",      "LSTMGrad", "RNNGrad",
    "RoiAlignGrad",  // of maxima
};

// The op that a refusal names, or "".
std::string RefusedOp(const Status& status) {
  const std::string& message = status.message();
  const size_t begin = message.find("[");
  if (status.code() != StatusCode::kUnsupported || begin == std::string::npos) return "";
  const std::string op = message.substr(begin + 1, message.find(" '", begin) - begin - 1);
  return op.starts_with("ai.caesura::") ? op.substr(12) : op;
}

class SecondDerivative : public ::testing::TestWithParam<GradientCase> {};

TEST_P(SecondDerivative, MatchesDifferences) {
  const GradientCase& c = GetParam();
  const Result<CaseRun> run = RunSecond(c);
  if (!run.ok()) {
    EXPECT_EQ(kNoSecondDerivatives.count(RefusedOp(run.status())), 1u) << run.status().ToString();
    return;
  }
  const bool is_double = c.no_double.empty();
  const std::vector<std::vector<double>> expected = Differences(*run, is_double ? 1e-6 : 1e-2);
  for (size_t k = 0; k < expected.size(); ++k) {
    const double allowed = (is_double ? 1e-5 : 2e-2) * ScaleOf(expected[k]);
    for (size_t i = 0; i < expected[k].size(); ++i) {
      EXPECT_NEAR(run->gradients[k][i], expected[k][i], allowed)
          << "d" << run->xs[k] << "[" << i << "]";
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Rules, SecondDerivative, ::testing::ValuesIn(AllGradientCases()),
                         [](const auto& info) { return info.param.name; });

TEST(SecondDerivatives, FiveOpsHaveNone) {
  std::set<std::string> refused;
  for (const GradientCase& c : AllGradientCases()) {
    const Result<CaseRun> run = RunSecond(c);
    if (!run.ok()) refused.insert(RefusedOp(run.status()));
  }
  EXPECT_EQ(refused, kNoSecondDerivatives);
}

}  // namespace
}  // namespace caesura
