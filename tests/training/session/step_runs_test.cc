// SPDX-License-Identifier: Apache-2.0
// Runs of a session's programs without the session.
#include "training/session/step_runs.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <stdexcept>

#include "core/execute/execution_observer.h"
#include "tests/training/session/session_parts.h"
#include "training/files/training_curves.h"
#include "training/session/waiting_step.h"

namespace caesura::testing {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

// Throws before step `at` of the plan, so many times.
class Throws : public ExecutionObserver {
 public:
  explicit Throws(int times) : left_(times) {}
  void OnStepBegin(const ExecutionPlan&, const ExecutionState&, int step) override {
    if (step == 1 && left_-- > 0) throw std::runtime_error("planted");
  }

 private:
  int left_;
};

TEST(StepRunsTest, AStepUpdatesAndCounts) {
  PartsOfASession parts;
  const std::vector<float> before = parts.Weights();
  const double first = parts.Step().value();
  EXPECT_NE(parts.Weights(), before);
  EXPECT_EQ(parts.progress.updates, 1);
  EXPECT_EQ(parts.progress.update_loss, first);
  ASSERT_EQ(parts.runs.curves().points().size(), 1u);
  EXPECT_EQ(parts.runs.curves().points()[0].learning_rate, 0.25);
  EXPECT_LT(parts.Step().value(), first);
  EXPECT_EQ(parts.runs.failures().failed, 0);
}

TEST(StepRunsTest, EvaluationsAndPredictionsChangeNothing) {
  PartsOfASession parts;
  const std::vector<float> before = parts.Weights();
  NamedValues inputs = LinearBatch();
  const Evaluation evaluated = parts.runs.Evaluate(inputs).value();
  inputs.erase("t");
  const std::vector<RuntimeValue> predicted = parts.runs.Predict(inputs).value();
  EXPECT_EQ(evaluated.outputs[0].tensor().ToVector<float>(),
            predicted[0].tensor().ToVector<float>());
  EXPECT_EQ(parts.Weights(), before);
  EXPECT_EQ(parts.progress.micro_steps, 0);
  EXPECT_EQ(evaluated.loss, parts.Step().value());
}

TEST(StepRunsTest, AFrozenValueThatIsSetIsReadByTheNextRun) {
  PartsOfASession parts;
  const double before = parts.runs.Evaluate(LinearBatch())->loss;
  ASSERT_TRUE(parts.parameters.Set("b", Tensor::Of<float>({2}, {0, 0})).ok());
  const double after = parts.runs.Evaluate(LinearBatch())->loss;
  EXPECT_NE(after, before);
  EXPECT_EQ(parts.Step().value(), after);
}

TEST(StepRunsTest, NoStepBeginsOnLostParameters) {
  PartsOfASession parts;
  parts.parameters.set_lost(std::vector<std::string>{"w"});
  EXPECT_THAT(parts.Step().status().message(), HasSubstr("Restore a checkpoint first"));
}

TEST(StepRunsTest, AStepThatWaitsEndsAsIfItHadNot) {
  PartsOfASession parts, undisturbed;
  const double expected = undisturbed.Step().value();
  parts.control.SuspendAt(1);
  EXPECT_EQ(parts.Step().status().code(), StatusCode::kSuspended);
  EXPECT_TRUE(parts.runs.suspended());
  EXPECT_THAT(parts.Step().status().message(), HasSubstr("a step waits"));
  EXPECT_FALSE(parts.parameters.Set("w", Tensor::Of<float>({2, 2}, {1, 2, 3, 4})).ok());
  EXPECT_EQ(parts.runs.Resume({}).value(), expected);
  EXPECT_EQ(parts.Weights(), undisturbed.Weights());
  EXPECT_FALSE(parts.runs.suspended());
  EXPECT_THAT(parts.runs.Resume({}).status().message(), HasSubstr("no step waits"));
}

TEST(StepRunsTest, AStepThatIsGivenUpHasDoneNothing) {
  PartsOfASession parts;
  const std::vector<float> before = parts.Weights();
  parts.control.SuspendAt(1);
  ASSERT_FALSE(parts.Step().ok());
  ASSERT_TRUE(parts.runs.Drop().ok());
  EXPECT_EQ(parts.Weights(), before);
  EXPECT_TRUE(parts.parameters.Set("w", Tensor::Of<float>({2, 2}, {1, 2, 3, 4})).ok());
  EXPECT_FALSE(parts.runs.Drop().ok());
}

TEST(StepRunsTest, AnotherRateHoldsForTheStepThatWaits) {
  PartsOfASession parts,
      other([](TrainingOptions& o) { o.step.optimizer = AdamW{.learning_rate = 0.5}; });
  parts.control.SuspendAt(1);
  ASSERT_FALSE(parts.Step().ok());
  parts.runs.set_learning_rate(0.5);
  ASSERT_TRUE(parts.runs.Resume({}).ok());
  ASSERT_TRUE(other.Step().ok());
  EXPECT_EQ(parts.Weights(), other.Weights());
}

TEST(StepRunsTest, ACheckpointHasTheStepThatWaits) {
  PartsOfASession here, there;
  Checkpoint none, some;
  ASSERT_TRUE(here.runs.Save(none).ok());
  EXPECT_FALSE(there.runs.TakeUp(none)->run);
  here.control.SuspendAt(1);
  ASSERT_FALSE(here.Step().ok());
  ASSERT_TRUE(here.runs.Save(some).ok());
  there.runs.GoOn(there.runs.TakeUp(some).value());
  EXPECT_EQ(there.runs.Resume({}).value(), here.runs.Resume({}).value());
  EXPECT_EQ(there.Weights(), here.Weights());
  some.properties.clear();
  EXPECT_EQ(there.runs.TakeUp(some).status().code(), StatusCode::kNotFound);
}

TEST(StepRunsTest, AFailedStepMayBeSkippedOrDoneAgain) {
  for (const OnFailure action : {OnFailure::kStop, OnFailure::kSkip, OnFailure::kRetry}) {
    PartsOfASession parts([&](TrainingOptions& o) { o.failures.action = action; });
    const std::vector<float> before = parts.Weights();
    Throws once(1);
    const Result<double> loss = parts.Step(1, {&once});
    EXPECT_EQ(parts.runs.failures().failed, 1);
    EXPECT_THAT(parts.runs.failures().last, HasSubstr("planted"));
    EXPECT_EQ(loss.ok(), action != OnFailure::kStop);
    EXPECT_EQ(loss.ok() && std::isnan(*loss), action == OnFailure::kSkip);
    EXPECT_EQ(parts.runs.failures().saved, action == OnFailure::kRetry ? 1 : 0);
    EXPECT_EQ(parts.Weights() != before, action == OnFailure::kRetry);
  }
}

TEST(StepRunsTest, PartsOfABatchMakeTheSameUpdate) {
  PartsOfASession whole,
      parts([](TrainingOptions& o) { o.failures = {.action = OnFailure::kRetryInParts}; });
  Throws once(1);
  const double loss = whole.Step().value();
  EXPECT_NEAR(parts.Step(1, {&once}).value(), loss, 1e-6);
  EXPECT_EQ(parts.runs.failures().saved, 1);
  for (size_t i = 0; i < 4; ++i) EXPECT_NEAR(parts.Weights()[i], whole.Weights()[i], 1e-5);
}

TEST(StepRunsTest, CoefficientsAreFedStepByStep) {
  PartsOfASession fed(
      [](TrainingOptions& o) { o.step.fed_coefficients = {"learning_rate", "weight_decay"}; }),
      own;
  EXPECT_THAT(fed.runs.coefficients(), ElementsAre(0.25, AdamW{}.weight_decay));
  ASSERT_TRUE(fed.Step().ok());
  ASSERT_TRUE(own.Step().ok());
  EXPECT_EQ(fed.Weights(), own.Weights());
  fed.runs.coefficients()[0] = 0;
  const std::vector<float> before = fed.Weights();
  ASSERT_TRUE(fed.Step().ok());
  EXPECT_EQ(fed.Weights(), before);
  EXPECT_EQ(fed.runs.curves().points().back().learning_rate, 0);
}

TEST(StepRunsTest, KnowsTheNormBeforeClipping) {
  PartsOfASession kept{[](TrainingOptions& o) { o.step.keep_gradients = true; }};
  ASSERT_TRUE(kept.Step().ok());
  EXPECT_TRUE(std::isnan(kept.runs.gradient_norm()));  // which nothing asked for
  double square = 0;
  for (const float g : kept.runs.gradients()[0].tensor().ToVector<float>()) square += g * g;
  for (const double clip : {0.125, std::numeric_limits<double>::infinity()}) {
    PartsOfASession parts{[&](TrainingOptions& o) { o.step.clip_norm = clip; }};
    EXPECT_TRUE(std::isnan(parts.runs.gradient_norm()));
    ASSERT_TRUE(parts.Step().ok());
    EXPECT_FLOAT_EQ(parts.runs.gradient_norm(), std::sqrt(square)) << clip;
  }
}

TEST(StepRunsTest, TheNormIsOfTheMeanOfBatches) {
  PartsOfASession one{[](TrainingOptions& o) { o.step.clip_norm = 1; }};
  PartsOfASession two{[](TrainingOptions& o) {
    o.step.clip_norm = 1;
    o.step.accumulation_steps = 2;
  }};
  ASSERT_TRUE(one.Step().ok());
  ASSERT_TRUE(two.Step().ok());
  EXPECT_TRUE(std::isnan(two.runs.gradient_norm()));  // it has not updated
  ASSERT_TRUE(two.Step().ok());
  EXPECT_FLOAT_EQ(two.runs.gradient_norm(), one.runs.gradient_norm());
}

TEST(StepRunsTest, KeepsOutputsAndGradients) {
  PartsOfASession parts([](TrainingOptions& o) {
    o.step.keep_gradients = true;
    o.step.keep_outputs = {"y"};
  });
  ASSERT_TRUE(parts.Step().ok());
  ASSERT_EQ(parts.runs.kept_outputs().size(), 1u);
  ASSERT_EQ(parts.runs.gradients().size(), 1u);
  EXPECT_EQ(parts.runs.gradients()[0].tensor().shape(), Shape({2, 2}));
  EXPECT_GT(parts.runs.Plan(LinearBatch()).value()->arena_bytes(), 0u);
}

}  // namespace
}  // namespace caesura::testing
