// SPDX-License-Identifier: Apache-2.0
// Steps whose loss or gradients are not finite: refused where that is wanted, with everything as it
// was, bit for bit; the next step is that of a session which never saw them.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>

#include "tests/temporary_folder.h"
#include "tests/training/real_step.h"
#include "training/files/checkpoint.h"

namespace caesura::testing {
namespace {

using ::testing::HasSubstr;

// All that a session has: what it would save.
std::string SavedBytes(const TrainingSession& session) {
  TemporaryFolder folder;
  EXPECT_TRUE(session.Save(folder.path("c")).ok());
  return ReadWholeFile(PosixFileSystem(), folder.path("c"), 1 << 24).value();
}

// The batch with one value that is not finite.
NamedValues Spoilt(const NamedValues& batch, const std::string& input, float value) {
  NamedValues out = batch;
  const Tensor copy = batch.at(input).tensor().Clone().value();
  copy.data<float>()[copy.elements() / 2] = value;
  out[input] = copy;
  return out;
}

void ExpectRefused(RealModel real, const std::string& input) {
  auto undisturbed = SessionOf(real);  // does not ask: the question changes no bits
  real.options.step.refuse_nonfinite = true;
  auto session = SessionOf(real);
  const int micro_steps = std::max(1, real.options.step.accumulation_steps);
  for (int update = 0; update < kUpdates; ++update) {
    for (int micro = 0; micro < micro_steps; ++micro) {
      SCOPED_TRACE("update " + std::to_string(update) + ", micro-step " + std::to_string(micro));
      const NamedValues& batch = real.batches[(update + micro) % kUpdates];
      const std::string before = SavedBytes(*session);
      for (const float value : {NAN, INFINITY}) {
        const Status status = session->Step(Spoilt(batch, input, value)).status();
        EXPECT_EQ(status.code(), StatusCode::kInvalidArgument);
        EXPECT_THAT(status.message(), HasSubstr("the norm of the gradients is "));
        EXPECT_THAT(status.message(), HasSubstr("the step was refused"));
        EXPECT_EQ(SavedBytes(*session), before);
      }
      EXPECT_EQ(session->Step(batch).value(), undisturbed->Step(batch).value());
      EXPECT_EQ(SavedBytes(*session), SavedBytes(*undisturbed));
    }
  }
}

TEST(RefuseNonfinite, LeavesParametersStatisticsAndOptimizerState) {
  ExpectRefused(Digits(), "images");
}

TEST(RefuseNonfinite, LeavesTheRandomState) { ExpectRefused(DigitsWithDropout(), "images"); }

TEST(RefuseNonfinite, LeavesAccumulatedGradients) {
  RealModel real = Digits();
  real.options.step.accumulation_steps = 3;
  ExpectRefused(std::move(real), "images");
}

TEST(RefuseNonfinite, WithClippedGradients) {
  RealModel real = Mlp();
  real.options.step.clip_norm = 0.5;
  ExpectRefused(std::move(real), "x");
}

TEST(RefuseNonfinite, WithOptimizersThatAreComposed) {
  for (const Optimizer& optimizer : {Optimizer(Adafactor{}), Optimizer(Muon{})}) {
    RealModel real = Mlp();
    if (std::holds_alternative<Muon>(optimizer)) real.options.step.frozen = {"b0", "b1", "b2"};
    real.options.step.optimizer = optimizer;
    ExpectRefused(std::move(real), "x");
  }
}

// Without it the parameters are lost: what is refused above would have done something.
TEST(RefuseNonfinite, OtherwiseSuchAStepSpoilsTheParameters) {
  const RealModel real = Mlp();
  auto session = SessionOf(real);
  ASSERT_TRUE(session->Step(Spoilt(real.batches[0], "x", NAN)).ok());
  EXPECT_TRUE(std::isnan(session->parameters().Get("w2").value().data<float>()[0]));
}

TEST(RefuseNonfinite, IsRefusedWhereItCannotBe) {
  RealModel real = Mlp();
  real.options.step.refuse_nonfinite = true;
  real.options.step.commit = CommitMode::kEagerConsume;
  EXPECT_THAT(TrainingSession::Create(real.model.Clone(), real.options).status().message(),
              HasSubstr("shows after the last one"));
  real.options.step.commit = CommitMode::kLate;
  real.options.step.precision = DType::kFloat16;
  EXPECT_THAT(TrainingSession::Create(real.model.Clone(), real.options).status().message(),
              HasSubstr("is skipped instead"));
}

}  // namespace
}  // namespace caesura::testing
