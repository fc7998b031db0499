// SPDX-License-Identifier: Apache-2.0
// The answers of a session to a step that fails: the step is left out or done again, with the bits
// of a session whose step has not failed, and counted.
#include "training/session/training_options.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>

#include "core/execute/execution_observer.h"
#include "tests/core/execute/faulty_provider.h"
#include "tests/training/real_step.h"

namespace caesura::testing {
namespace {

using ::testing::HasSubstr;

// Throws once, before step `at` of the plan.
class ThrowsOnce : public ExecutionObserver {
 public:
  explicit ThrowsOnce(int at) : at_(at) {}
  void OnStepBegin(const ExecutionPlan&, const ExecutionState&, int step) override {
    if (step == at_ && !std::exchange(thrown_, true)) throw std::runtime_error("planted");
  }

 private:
  int at_;
  bool thrown_ = false;
};

class FailurePolicies : public ::testing::Test {
 protected:
  void Begin(RealModel real, FailurePolicy policy) {
    names_ = StepRunner(real).names();
    undisturbed_ = SessionOf(real);
    provider_ = std::make_shared<FailingProvider>(TrainingCpu(), "faulty", /*scribbles=*/true);
    real.options.providers = {provider_, TrainingCpu()};
    real.options.fallback = policy.action == OnFailure::kRetryOnDefaults;
    real.options.failures = policy;
    real_ = std::move(real);
    provider_->FailAt(-1);
    session_ = SessionOf(real_);
    ASSERT_EQ(Step(0).value(), undisturbed_->Step(real_.batches[0]).value());  // plans
    const auto counted = SessionOf(real_);
    ASSERT_TRUE(counted->Step(real_.batches[0]).ok());
    provider_->FailAt(-1);
    ASSERT_TRUE(counted->Step(real_.batches[0]).ok());
    calls_ = provider_->calls();
  }
  Result<double> Step(int batch, std::vector<ExecutionObserver*> observers = {}) {
    return session_->Step(real_.batches[batch], std::move(observers));
  }
  Values Everything(const TrainingSession& session) const {
    Values out;
    for (const std::string& name : names_)
      out.push_back(session.parameters().Get(name).value().Clone().value());
    return out;
  }
  void ExpectAsUndisturbed() {
    EXPECT_TRUE(SameBits(Everything(*session_), Everything(*undisturbed_)));
    EXPECT_EQ(session_->progress().updates, undisturbed_->progress().updates);
  }

  RealModel real_;
  std::vector<std::string> names_;
  std::unique_ptr<TrainingSession> undisturbed_, session_;
  std::shared_ptr<FailingProvider> provider_;
  int calls_ = 0;
};

TEST_F(FailurePolicies, Stop) {
  Begin(Digits(), {});
  provider_->FailAt(9);
  EXPECT_THAT(Step(1).status().message(), HasSubstr("planted failure"));
  ExpectAsUndisturbed();
  EXPECT_EQ(session_->runs().failures().failed, 1);
  EXPECT_THAT(session_->runs().failures().last, HasSubstr("planted failure"));
  EXPECT_EQ(Step(1).value(), undisturbed_->Step(real_.batches[1]).value());
  ExpectAsUndisturbed();
}

TEST_F(FailurePolicies, Skip) {
  Begin(DigitsWithDropout(), {.action = OnFailure::kSkip});
  for (const int k : {0, 9, 20}) {
    provider_->FailAt(k);
    EXPECT_TRUE(std::isnan(Step(0).value()));
    ExpectAsUndisturbed();
  }
  EXPECT_EQ(session_->runs().failures().skipped, 3);
  EXPECT_EQ(Step(1).value(), undisturbed_->Step(real_.batches[1]).value());
  ExpectAsUndisturbed();
}

TEST_F(FailurePolicies, Retry) {
  Begin(DigitsWithDropout(), {.action = OnFailure::kRetry, .retries = 2});
  provider_->FailAt(9);
  EXPECT_EQ(Step(1).value(), undisturbed_->Step(real_.batches[1]).value());
  ExpectAsUndisturbed();
  EXPECT_EQ(session_->runs().failures().failed, 1);
  EXPECT_EQ(session_->runs().failures().saved, 1);
  provider_->FailAt(9, /*and_later=*/true);
  EXPECT_FALSE(Step(1).ok());
  ExpectAsUndisturbed();
  EXPECT_EQ(session_->runs().failures().failed, 4);
  EXPECT_EQ(session_->runs().failures().retried, 3);
  EXPECT_EQ(session_->runs().failures().saved, 1);
}

// Like feeds of a wrong dtype: the batch is not left out, and the step is not done again.
TEST_F(FailurePolicies, FeedsOfAWrongShapeAreNoFailure) {
  for (const OnFailure action : {OnFailure::kSkip, OnFailure::kRetry, OnFailure::kRetryInParts}) {
    Begin(action == OnFailure::kRetryInParts ? Mlp() : DigitsWithDropout(), {.action = action});
    NamedValues wrong = real_.batches[1];
    Tensor labels = wrong.at("labels").tensor();
    labels = Tensor::Zeros(labels.dtype(), Shape{labels.elements() + 1});
    wrong["labels"] = labels;
    EXPECT_EQ(session_->Step(wrong).status().code(), StatusCode::kInvalidArgument);
    ExpectAsUndisturbed();
    EXPECT_EQ(session_->runs().failures().failed, 0);
    EXPECT_EQ(session_->runs().failures().retried, 0);
    EXPECT_EQ(Step(1).value(), undisturbed_->Step(real_.batches[1]).value());
    ExpectAsUndisturbed();
  }
}

// A seed that was given for a step is that of the step which is done, however often it was begun.
TEST_F(FailurePolicies, AStepThatIsDoneAgainByItsCallerDrawsTheSameNumbers) {
  Begin(DigitsWithDropout(), {});
  const auto expect_step = [&](auto interrupt) {
    session_->progress().next_seed = 77;
    undisturbed_->progress().next_seed = 77;
    interrupt();
    EXPECT_EQ(Step(1).value(), undisturbed_->Step(real_.batches[1]).value());
    ExpectAsUndisturbed();
    EXPECT_EQ(Step(0).value(), undisturbed_->Step(real_.batches[0]).value());  // by the session's
  };
  expect_step([&] {
    provider_->FailAt(9);
    EXPECT_FALSE(Step(1).ok());
  });
  expect_step([&] {
    session_->control().set_terminate(true);
    EXPECT_EQ(Step(1).status().code(), StatusCode::kCancelled);
    session_->control().set_terminate(false);
  });
  expect_step([&] {  // given up
    session_->control().SuspendAt(5);
    EXPECT_EQ(Step(1).status().code(), StatusCode::kSuspended);
    EXPECT_TRUE(session_->DropStep().ok());
  });
  session_->progress().next_seed = 77;
  undisturbed_->progress().next_seed = 77;
  session_->control().SuspendAt(5);
  EXPECT_EQ(Step(1).status().code(), StatusCode::kSuspended);
  session_->progress().next_seed = 78;  // of the step after the one that waits
  EXPECT_EQ(session_->ResumeStep().value(), undisturbed_->Step(real_.batches[1]).value());
  undisturbed_->progress().next_seed = 78;
  EXPECT_EQ(Step(0).value(), undisturbed_->Step(real_.batches[0]).value());
  ExpectAsUndisturbed();
}

TEST_F(FailurePolicies, RetryOnDefaults) {
  Begin(DigitsWithDropout(), {.action = OnFailure::kRetryOnDefaults});
  ThrowsOnce throws(9);  // no provider's failure, which would have this answer without a policy
  EXPECT_EQ(Step(1, {&throws}).value(), undisturbed_->Step(real_.batches[1]).value());
  ExpectAsUndisturbed();
  EXPECT_THAT(session_->fallback().provider_names(), ::testing::ElementsAre(kCpuProviderName));
  EXPECT_EQ(session_->runs().failures().saved, 1);
  ThrowsOnce again(9);  // and now there is nowhere to go
  EXPECT_THAT(Step(1, {&again}).status().message(), HasSubstr("planted"));
  ExpectAsUndisturbed();
}

// Plain SGD, so that a rounding of the gradient's sum stays one.
TEST_F(FailurePolicies, RetryInParts) {
  for (const int parts : {2, 3}) {
    RealModel real = Mlp();
    real.options.step.optimizer = Sgd{.learning_rate = 0.1};
    Begin(std::move(real), {.action = OnFailure::kRetryInParts, .parts = parts});
    const Values before = Everything(*session_);
    provider_->FailAt(calls_ / 2);
    const double expected = undisturbed_->Step(real_.batches[1]).value();
    EXPECT_NEAR(Step(1).value(), expected, 1e-6);
    EXPECT_EQ(session_->runs().failures().saved, 1);
    EXPECT_EQ(session_->progress().updates, 2);
    const Values found = Everything(*session_), wanted = Everything(*undisturbed_);
    EXPECT_FALSE(SameBits(found, before));
    for (size_t i = 0; i < found.size(); ++i) {
      const std::vector<float> a = ToFloats(found[i]), b = ToFloats(wanted[i]);
      for (size_t e = 0; e < a.size(); ++e) ASSERT_NEAR(a[e], b[e], 1e-6) << names_[i];
    }
  }
}

// Each of its kernels fails in turn, in the first part or the last: running statistics are put
// back.
TEST_F(FailurePolicies, RetryInPartsThatFails) {
  Begin(Digits(), {.action = OnFailure::kRetryInParts});
  provider_->FailAt(0);
  ASSERT_TRUE(Step(1).ok());  // plans of the parts
  provider_->FailAt(0);
  ASSERT_TRUE(Step(1).ok());
  const int calls = provider_->calls();
  ASSERT_GT(calls, 40);
  const Values before = Everything(*session_);
  for (int k = 1; k < calls; k += 3) {
    SCOPED_TRACE("call " + std::to_string(k) + " of " + std::to_string(calls));
    ThrowsOnce throws(0);
    provider_->FailAt(k - 1);
    ASSERT_FALSE(Step(1, {&throws}).ok());
    ASSERT_TRUE(SameBits(Everything(*session_), before));
  }
}

TEST_F(FailurePolicies, RetryInPartsOfBatchesThatCannotBeSplit) {
  Begin(Mlp(), {.action = OnFailure::kRetryInParts, .parts = 4});
  provider_->FailAt(3);
  const Status status = Step(1).status();
  EXPECT_THAT(status.message(), HasSubstr("'x' is float32[6, 12]"));
  EXPECT_THAT(status.message(), HasSubstr("cannot be split into 4 equal parts"));
  EXPECT_THAT(status.message(), HasSubstr("planted failure"));
  ExpectAsUndisturbed();
}

TEST(FailurePolicy, IsChecked) {
  RealModel real = Mlp();
  const auto said = [&] {
    return TrainingSession::Create(real.model.Clone(), real.options).status().message();
  };
  real.options.failures = {.action = OnFailure::kRetry, .retries = 0};
  EXPECT_THAT(said(), HasSubstr("retries: expected 1 or more, got 0"));
  real.options.failures = {.action = OnFailure::kRetryInParts, .parts = 1};
  EXPECT_THAT(said(), HasSubstr("parts: expected 2 or more, got 1"));
  real.options.failures.parts = 2;
  real.options.step.accumulation_steps = 2;
  EXPECT_THAT(said(), HasSubstr("on_failure retry-in-parts and accumulation_steps do not"));
}

}  // namespace
}  // namespace caesura::testing
