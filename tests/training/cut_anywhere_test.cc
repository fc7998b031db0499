// SPDX-License-Identifier: Apache-2.0
// The whole steps of both examples, cut: at every boundary, dead bytes poisoned, live ones moved,
// resumed on another thread, side by side with other states. Losses, parameters and optimizer state
// keep their bits.
#include <gtest/gtest.h>

#include <atomic>
#include <thread>

#include "tests/training/real_step.h"

namespace caesura::testing {
namespace {

constexpr uint8_t kPoisons[] = {0xff, 0x00, 0x7f};  // as floats: NaN, zero, large

const auto kStraight = [](ExecutionState& state) { return PartialExecutor::Run(state); };

Result<RunOutcome> OnAnotherThread(ExecutionState& state, int limit = INT_MAX) {
  Result<RunOutcome> outcome = Internal("did not run");
  std::thread([&] { outcome = PartialExecutor::Run(state, limit); }).join();
  return outcome;
}

// One step a call, with the state moved in between.
Result<RunOutcome> StepByStep(ExecutionState& state, uint8_t poison, bool threads) {
  for (;;) {
    const int limit = state.program_counter() + 1;
    auto outcome = threads ? OnAnotherThread(state, limit) : PartialExecutor::Run(state, limit);
    if (!outcome.ok() || *outcome != RunOutcome::kStopped) return outcome;
    Status moved = state.Relocate(poison);
    if (!moved.ok()) return moved;
  }
}

class CutWholeSteps : public ::testing::TestWithParam<MakesReal> {
 protected:
  const RealModel real_ = GetParam().make();
  const StepRunner step_{real_};
  const std::shared_ptr<const ExecutionPlan> plan_ = step_.plan();
  const Trained expected_ = step_.BySession();
};

// The net does something: what is compared below are not zeros or constants.
TEST_P(CutWholeSteps, TheUncutRunIsTheSessions) {
  ExecutionState state(plan_);
  auto results = step_.Train(state, kStraight);
  ASSERT_TRUE(results.ok()) << results.status().ToString();
  EXPECT_TRUE(*results == expected_);
  EXPECT_FALSE(SameBits(expected_.losses[0], expected_.losses[1]));
  EXPECT_GT(ToFloats(expected_.losses[0])[0], 1.0f);
  const ParameterSet initial = step_.Parameters();
  for (int i = 0; i < initial.size(); ++i) {
    EXPECT_FALSE(SameBits(RuntimeValue(initial.tensor(i)), expected_.parameters[i]))
        << initial.name(i);
  }
}

TEST(CutWholeStepsOf, TheGptWhoseGradientsAreClipped) {
  RealModel real = CharGpt();
  const Trained clipped = StepRunner(real).BySession();
  real.options.step.clip_norm = 0;
  EXPECT_FALSE(clipped == StepRunner(real).BySession());
}

TEST(CutWholeStepsOf, TheDigitsWhoseDropoutDrops) {
  const RealModel plain = Digits(), dropout = DigitsWithDropout();
  EXPECT_FALSE(StepRunner(plain).BySession() == StepRunner(dropout).BySession());
}

TEST_P(CutWholeSteps, OneBoundaryAtATime) {
  ExecutionState state(plan_);
  for (int at = 0; at <= static_cast<int>(plan_->steps().size()); ++at) {
    auto run = [&](ExecutionState& s) -> Result<RunOutcome> {
      auto outcome = PartialExecutor::Run(s, at);
      if (!outcome.ok() || *outcome != RunOutcome::kStopped) return outcome;
      EXPECT_EQ(s.program_counter(), at);
      Status moved = s.Relocate(kPoisons[at % 3]);
      return moved.ok() ? OnAnotherThread(s) : moved;
    };
    auto results = step_.Train(state, run);
    ASSERT_TRUE(results.ok()) << results.status().ToString();
    EXPECT_TRUE(*results == expected_) << "cut before step " << at << " of\n" << plan_->ToString();
  }
}

TEST_P(CutWholeSteps, AllBoundariesAtOnce) {
  for (uint8_t poison : kPoisons) {
    for (bool threads : {false, true}) {
      ExecutionState state(plan_);
      auto results =
          step_.Train(state, [&](ExecutionState& s) { return StepByStep(s, poison, threads); });
      ASSERT_TRUE(results.ok()) << results.status().ToString();
      EXPECT_TRUE(*results == expected_) << "poison " << int{poison} << ", threads " << threads;
    }
  }
}

// The one state is `lead` steps ahead of the other; each has parameters of its own.
TEST_P(CutWholeSteps, TwoStatesInterleaved) {
  const int steps = static_cast<int>(plan_->steps().size());
  for (int lead = 0; lead <= steps; lead += 1 + steps / 24) {
    ExecutionState first(plan_), second(plan_);
    ExecutionState* states[] = {&first, &second};
    ParameterSet parameters[] = {step_.Parameters(), step_.Parameters()};
    Trained results[2];
    auto advance = [&](int i) {
      ExecutionState& state = *states[i];
      if (state.stage() == ExecutionState::Stage::kReady) {
        ASSERT_TRUE(PartialExecutor::Run(state, state.program_counter() + 1).ok());
      } else if (static_cast<int>(results[i].losses.size()) < kUpdates) {
        ASSERT_TRUE(
            step_.Start(state, parameters[i], static_cast<int>(results[i].losses.size())).ok());
      }
      if (state.stage() != ExecutionState::Stage::kFinished) return;
      Values found = state.TakeFetches();  // the loss, and the norm where gradients are clipped
      results[i].losses.push_back(std::move(found[0]));
      state.Cancel();
    };
    for (int i = 0; i < lead; ++i) advance(0);
    for (int i = 0; i < kUpdates * (steps + 2); ++i) {
      advance(1);
      advance(0);
    }
    for (int i = 0; i < 2; ++i) {
      results[i].parameters = StepRunner::ValuesOf(parameters[i]);
      EXPECT_TRUE(results[i] == expected_) << "state " << i << ", lead " << lead;
    }
  }
}

TEST_P(CutWholeSteps, FourThreadsOnOnePlan) {
  std::atomic<int> right{0};
  std::vector<std::thread> threads;
  for (int t = 0; t < 4; ++t) {
    threads.emplace_back([&, t] {
      ExecutionState state(plan_);
      for (int round = 0; round < 6; ++round) {
        auto run = [&](ExecutionState& s) { return RunInPieces(s, t + 1); };
        auto results = step_.Train(state, run);
        if (results.ok() && *results == expected_) ++right;
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(right, 4 * 6);
}

// A clone taken at each boundary finishes the update after the first state is gone.
TEST_P(CutWholeSteps, CloneAtEachBoundary) {
  ParameterSet updated = step_.Parameters();
  {
    ExecutionState state(plan_);
    ASSERT_TRUE(step_.Start(state, updated, 0).ok());
    ASSERT_EQ(PartialExecutor::Run(state).value(), RunOutcome::kFinished);
  }
  for (int at = 0; at < static_cast<int>(plan_->steps().size()); ++at) {
    ParameterSet parameters = step_.Parameters();
    std::unique_ptr<ExecutionState> copy;
    {
      ExecutionState state(plan_);
      ASSERT_TRUE(step_.Start(state, parameters, 0).ok());
      ASSERT_EQ(PartialExecutor::Run(state, at).value(), RunOutcome::kStopped);
      copy = state.Clone().value();
      ASSERT_TRUE(state.Relocate(0xff).ok());
    }
    ASSERT_EQ(OnAnotherThread(*copy).value(), RunOutcome::kFinished);
    EXPECT_TRUE(SameBits(copy->TakeFetches()[0], expected_.losses[0])) << at;
    EXPECT_TRUE(SameBits(StepRunner::ValuesOf(parameters), StepRunner::ValuesOf(updated))) << at;
  }
}

INSTANTIATE_TEST_SUITE_P(RealModels, CutWholeSteps,
                         ::testing::Values(MakesReal{"Digits", Digits},
                                           MakesReal{"DigitsWithDropout", DigitsWithDropout},
                                           MakesReal{"CharGpt", CharGpt}),
                         MakesReal::Name);

}  // namespace
}  // namespace caesura::testing
