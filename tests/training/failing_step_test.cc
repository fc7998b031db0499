// SPDX-License-Identifier: Apache-2.0
// A training step that fails at its k-th kernel, for every k: what has not been written yet stays
// as it was and the session goes on; what has been written in part is said to be lost until a
// checkpoint is restored.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/core/execute/faulty_provider.h"
#include "tests/temporary_folder.h"
#include "tests/training/real_step.h"

namespace caesura::testing {
namespace {

using ::testing::HasSubstr;

class FailingStep : public ::testing::Test {
 protected:
  // A session on `real` whose kernels fail when told to.
  void Begin(RealModel real) {
    real_ = std::move(real);
    provider_ = std::make_shared<FailingProvider>(TrainingCpu());
    real_.options.providers = {provider_};
    provider_->FailAt(-1);
    session_ = SessionOf(real_);
    names_ = StepRunner(real_).names();
  }
  Values Everything() const {
    Values out;
    for (const std::string& name : names_)
      out.push_back(session_->parameters().Get(name).value().Clone().value());
    return out;
  }
  Result<double> Step(int update) { return session_->Step(real_.batches[update]); }
  // Kernel calls of a step, once plans are made (planning folds constants through kernels too).
  int Calls(int update) {
    provider_->FailAt(-1);
    EXPECT_TRUE(Step(update).ok());
    return provider_->calls();
  }
  // Kernel calls of the update's step that come before the first one which writes to a parameter
  // has returned.
  int CallsBeforeTheFirstWriteEnds() {
    const auto plan = session_->runs().Plan(real_.batches[0]).value();
    int calls = 0;
    for (const auto& step : plan->steps()) {
      ++calls;
      for (uint32_t i = 0; i < step.output_count; ++i) {
        const uint32_t id = plan->arguments()[step.first_argument + step.input_count + i];
        if (plan->buffers()[id].kind == PlannedBuffer::Kind::kParameter) return calls;
      }
    }
    return calls;
  }

  // Fails at each kernel of the second update.
  void ExpectAllOrNothing() {
    TemporaryFolder folder;
    const std::string path = folder.path("before.ckpt");
    ASSERT_TRUE(Step(0).ok());
    ASSERT_TRUE(session_->Save(path).ok());
    const Values before = Everything();
    const int calls = Calls(1), safe = CallsBeforeTheFirstWriteEnds();
    const Values after = Everything();
    ASSERT_GT(calls, 10);
    ASSERT_FALSE(SameBits(before, after));
    ASSERT_TRUE(session_->Restore(path).ok());
    for (int k = 0; k < calls; ++k) {
      SCOPED_TRACE("call " + std::to_string(k) + " of " + std::to_string(calls));
      provider_->FailAt(k);
      auto failed = Step(1);
      provider_->FailAt(-1);
      ASSERT_FALSE(failed.ok());
      EXPECT_EQ(failed.status().code(), StatusCode::kProviderFailure);
      EXPECT_THAT(failed.status().message(), HasSubstr("planted failure"));
      if (k < safe) {
        EXPECT_THAT(failed.status().message(), ::testing::Not(HasSubstr("lost")));
        ASSERT_TRUE(SameBits(Everything(), before));
        EXPECT_EQ(session_->progress().updates, 1);
      } else {
        EXPECT_THAT(failed.status().message(), HasSubstr("the step is lost"));
        EXPECT_THAT(Step(1).status().message(), HasSubstr("Restore a checkpoint"));
        EXPECT_FALSE(session_->Save(path).ok());
        ASSERT_TRUE(session_->Restore(path).ok());
      }
      ASSERT_TRUE(Step(1).ok());
      EXPECT_TRUE(SameBits(Everything(), after));
      ASSERT_TRUE(session_->Restore(path).ok());
    }
    lost_ = calls - safe;
  }

  RealModel real_;
  std::shared_ptr<FailingProvider> provider_;
  std::unique_ptr<TrainingSession> session_;
  std::vector<std::string> names_;
  int lost_ = 0;  // kernels whose failure loses the step
};

// One update writes all parameters: there is no kernel whose failure could leave half of them
// written.
TEST_F(FailingStep, LateCommitOfTheGptChangesNothing) {
  Begin(CharGpt());
  ExpectAllOrNothing();
  EXPECT_EQ(lost_, 0);
}

// Behind the update there are the running statistics' writes, two a BatchNormalization.
TEST_F(FailingStep, LateCommitOfTheDigitsChangesNothingBeforeTheUpdate) {
  Begin(Digits());
  ExpectAllOrNothing();
  EXPECT_EQ(lost_, 4);
}

// A group is a write.
TEST_F(FailingStep, LateCommitOfGroups) {
  RealModel real = CharGpt();
  real.options.step.groups = {{.names = {"token", "position"},
                               .learning_rate_scale = 0.5,
                               .weight_decay = {},
                               .optimizer = {}}};
  Begin(std::move(real));
  ExpectAllOrNothing();
  EXPECT_EQ(lost_, 1);
}

TEST_F(FailingStep, EagerConsumeSaysWhatIsLost) {
  RealModel real = Digits();
  real.options.step.commit = CommitMode::kEagerConsume;
  Begin(std::move(real));
  ExpectAllOrNothing();
  EXPECT_GT(lost_, 12);  // updates begin in the middle of the backward part
}

// Each buffer that gradients add up in is written by a kernel of its own.
TEST_F(FailingStep, MicroStepsThatOnlyAccumulate) {
  RealModel real = Digits();
  real.options.step.accumulation_steps = 2;
  Begin(std::move(real));
  TemporaryFolder folder;
  const std::string path = folder.path("before.ckpt");
  ASSERT_TRUE(session_->Save(path).ok());
  const Values before = Everything();
  ASSERT_TRUE(Step(0).ok());  // plans
  ASSERT_TRUE(session_->Restore(path).ok());
  const int calls = Calls(0);
  const Values after = Everything();
  ASSERT_TRUE(session_->Restore(path).ok());
  int unchanged = 0, lost = 0;
  for (int k = 0; k < calls; ++k) {
    provider_->FailAt(k);
    auto failed = Step(0);
    provider_->FailAt(-1);
    ASSERT_FALSE(failed.ok());
    if (failed.status().message().find("the step is lost") != std::string::npos) {
      ++lost;
      ASSERT_TRUE(session_->Restore(path).ok());
    } else {
      ++unchanged;
      ASSERT_TRUE(SameBits(Everything(), before)) << k;
    }
    ASSERT_TRUE(Step(0).ok());
    EXPECT_TRUE(SameBits(Everything(), after)) << k;
    ASSERT_TRUE(session_->Restore(path).ok());
  }
  EXPECT_GT(unchanged, 10);
  EXPECT_EQ(lost,
            10 - 1 + 4);  // ten trained parameters, four statistics, the first write loses nothing
}

// Allocations through the provider instead of kernels.
TEST_F(FailingStep, WithoutMemoryForTheArenaOrTheLoss) {
  FailingAllocator allocator;
  class Provider : public FailingProvider {
   public:
    explicit Provider(Allocator* allocator)
        : FailingProvider(TrainingCpu()), allocator_(allocator) {
      FailAt(-1);
    }
    Allocator& allocator() const override { return *allocator_; }

   private:
    Allocator* allocator_;
  };
  for (RealModel (*make)() : {Digits, CharGpt}) {
    RealModel real = make();
    real.options.providers = {std::make_shared<Provider>(&allocator)};
    const Trained expected = StepRunner(real).BySession();
    allocator.Heal();
    ASSERT_TRUE(SessionOf(real)->Step(real.batches[0]).ok());
    const int calls = allocator.calls();
    EXPECT_GE(calls, 2);
    for (int n = 0; n < calls; ++n) {
      session_ = SessionOf(real);
      allocator.FailAfter(n);
      auto failed = session_->Step(real.batches[0]);
      ASSERT_FALSE(failed.ok());
      EXPECT_EQ(failed.status().code(), StatusCode::kOutOfMemory);
      EXPECT_THAT(failed.status().message(), ::testing::Not(HasSubstr("lost")));
      allocator.Heal();
      for (int update = 0; update < kUpdates; ++update) {
        EXPECT_EQ(session_->Step(real.batches[update]).value(),
                  ToFloats(expected.losses[update])[0])
            << n;
      }
    }
  }
}

}  // namespace
}  // namespace caesura::testing
