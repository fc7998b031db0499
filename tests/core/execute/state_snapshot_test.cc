// SPDX-License-Identifier: Apache-2.0
// Runs that are captured and go on elsewhere, in memory: in another state, on another plan made
// from the same text. Plans that differ are in state_snapshot_fit_test.cc,
// files of snapshots in tests/core/runtime/snapshot_file_test.cc.
#include "core/execute/state_snapshot.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/core/execute/training_step.h"

namespace caesura::testing {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;

std::vector<std::string> NamesOf(const StateSnapshot& snapshot) {
  std::vector<std::string> names;
  for (const StateSnapshot::Value& value : snapshot.values) names.push_back(value.name);
  std::sort(names.begin(), names.end());
  return names;
}

// The rest of a run of the training step.
Values ToTheEnd(const TrainingStep& step, ExecutionState& state) {
  if (state.stage() == ExecutionState::Stage::kReady) {
    EXPECT_TRUE(PartialExecutor::Run(state).ok());
  }
  if (state.stage() == ExecutionState::Stage::kYielded) {
    EXPECT_TRUE(state.Resume(step.gradients).ok());
    EXPECT_TRUE(PartialExecutor::Run(state).ok());
  }
  EXPECT_EQ(state.stage(), ExecutionState::Stage::kFinished);
  return state.TakeFetches();
}

// The captured run goes on too: taking a snapshot changes nothing of it.
TEST(StateSnapshots, BothRunsEndWithTheSameBits) {
  const TrainingStep step, elsewhere;  // two graphs of one text
  const auto plan = step.Plan(), other = elsewhere.Plan(Tiny(), /*reuse=*/false);
  const StepResults expected = Uncut(step, plan);
  const int steps = static_cast<int>(plan->steps().size());
  for (int at = 0; at < steps; ++at) {
    ParameterSet parameters = step.Parameters(), copies;
    ExecutionState first(plan), second(other);
    ASSERT_TRUE(first.Start(step.feeds, {.parameters = &parameters, .seed = 7}).ok());
    ASSERT_TRUE(PartialExecutor::Run(first, at).ok());
    // The yield is in the middle: later places are reached through it, its own values in hand.
    if (first.stage() == ExecutionState::Stage::kYielded && at > first.program_counter()) {
      ASSERT_TRUE(first.Resume(step.gradients).ok());
      ASSERT_TRUE(PartialExecutor::Run(first, at).ok());
    }
    const Result<StateSnapshot> snapshot = first.Capture();
    ASSERT_TRUE(snapshot.ok()) << at << ": " << snapshot.status().ToString();
    for (int p = 0; p < parameters.size(); ++p)
      copies.Add(parameters.name(p), parameters.tensor(p).Clone().value());
    const Status restored = second.Restore(*snapshot, {.parameters = &copies});
    ASSERT_TRUE(restored.ok()) << at << ": " << restored.ToString();
    EXPECT_EQ(second.stage(), first.stage());
    EXPECT_TRUE(SameBits(ToTheEnd(step, first), expected.fetches)) << at;
    EXPECT_TRUE(SameBits(ToTheEnd(elsewhere, second), expected.fetches)) << at;
    for (int p = 0; p < copies.size(); ++p) {
      EXPECT_TRUE(SameBits(parameters.tensor(p), expected.parameters[p])) << at;
      EXPECT_TRUE(SameBits(copies.tensor(p), expected.parameters[p])) << at;
    }
  }
}

TEST(StateSnapshots, HoldThePlaceAndTheSurroundings) {
  const TrainingStep step;
  const auto plan = step.Plan();
  ParameterSet parameters = step.Parameters();
  ExecutionState state(plan);
  ASSERT_TRUE(
      state.Start(step.feeds, {.parameters = &parameters, .seed = 7, .step = 41, .tag = "batch 17"})
          .ok());
  ASSERT_EQ(PartialExecutor::Run(state).value(), RunOutcome::kYielded);
  const StateSnapshot waits = state.Capture().value();
  EXPECT_EQ(waits.program_counter, plan->yields()[0].step + 1);
  EXPECT_EQ(waits.yield_index, 0);
  EXPECT_EQ(waits.seed, 7u);
  EXPECT_EQ(waits.step, 41u);
  EXPECT_EQ(waits.tag, "batch 17");
  EXPECT_EQ(waits.threads, 1);
  EXPECT_EQ(waits.fingerprint, plan->fingerprint());
  EXPECT_THAT(waits.providers, ElementsAre("tiny ()"));
  ASSERT_EQ(waits.feeds.size(), 1u);
  EXPECT_EQ(waits.feeds[0].name, "x");
  EXPECT_EQ(waits.feeds[0].spec.shape, (Shape{4, 3}));
  ASSERT_EQ(waits.parameters.size(), 2u);
  EXPECT_EQ(waits.parameters[1].name, "seen");
  EXPECT_EQ(waits.parameters[1].dtype, DType::kFloat32);
  EXPECT_EQ(waits.parameters[1].shape, (Shape{4, 3}));
  EXPECT_EQ(waits.remaining.back(), "total");
  // The yield's values are there until the caller takes them.
  EXPECT_EQ(waits.handed_out.size(), 2u);
  const Values taken = state.TakeYielded();
  EXPECT_THAT(state.Capture()->handed_out, IsEmpty());
  ParameterSet others = step.Parameters();
  ExecutionState second(plan);
  ASSERT_TRUE(second.Restore(waits, {.parameters = &others, .seed = 1, .step = 2}).ok());
  EXPECT_EQ(second.options().seed, 7u);
  EXPECT_EQ(second.options().step, 41u);
  EXPECT_EQ(second.options().tag, "batch 17");
  EXPECT_EQ(second.yield_index(), 0);
  EXPECT_TRUE(SameBits(second.TakeYielded(), taken));
}

TEST(StateSnapshots, HoldNothingThatIsNotReadLater) {
  const auto plan = PlanOf(GraphOf(R"((float[2] x) => (float[2] d) {
    a = Neg (x)
    b = Mul (a, a)
    c = Add (b, a)
    d = Sub (c, x)
  })"),
                           {Ramp(Shape{2})});
  ASSERT_EQ(plan->steps().size(), 4u);
  const std::vector<std::string> live[] = {{}, {"a"}, {"a", "b"}, {"c"}};
  ExecutionState state(plan);
  ASSERT_TRUE(state.Start({Floats(Shape{2}, {1, 2})}, {}).ok());
  for (int at = 0; at < 4; ++at) {
    ASSERT_EQ(PartialExecutor::Run(state, at).value(), RunOutcome::kStopped);
    const StateSnapshot snapshot = state.Capture().value();
    EXPECT_EQ(NamesOf(snapshot), live[at]) << at;
    EXPECT_EQ(snapshot.remaining.size(), 4u - at);
    EXPECT_TRUE(snapshot.feeds[0].value.has_value());  // d = c - x is the last step
  }
  EXPECT_THAT(ToFloats(state.Capture()->values[0].value), ElementsAre(0, 2));
}

// An update whose sizes show only at run time gives the parameter itself: the restored run reads it
// from the set that it is given.
TEST(StateSnapshots, NameParametersInsteadOfCopyingThem) {
  const auto graph = GraphOf(R"((float[4] x, int64[1] to) => (float[N] y)
      <float[4] w = {0, 0, 0, 0}> {
    g = Reshape (x, to)
    w_now = test.Accumulate (w, g)
    y = Mul (w_now, w_now)
  })");
  graph->FindValue("w_now")->producer()->set_phase(Phase::kOptimizer);
  const Values feeds = {Floats(Shape{4}, {1, 2, 3, 4}), Tensor::Of<int64_t>(Shape{1}, {4})};
  const auto plan = PlanOf(graph, feeds, {.parameters = {graph->FindValue("w")}});
  ParameterSet parameters, others;
  parameters.Add("w", Tensor::Of<float>(Shape{4}, {1, 1, 1, 1}));
  others.Add("w", Tensor::Of<float>(Shape{4}, {5, 6, 7, 8}));
  ExecutionState state(plan), second(plan);
  ASSERT_TRUE(state.Start(feeds, {.parameters = &parameters}).ok());
  ASSERT_EQ(PartialExecutor::Run(state, 2).value(), RunOutcome::kStopped);
  const StateSnapshot snapshot = state.Capture().value();
  ASSERT_THAT(NamesOf(snapshot), ElementsAre("w_now"));
  EXPECT_EQ(snapshot.values[0].parameter, "w");
  EXPECT_FALSE(snapshot.values[0].value.has_value());
  EXPECT_TRUE(snapshot.parameters[0].written);
  ASSERT_TRUE(second.Restore(snapshot, {.parameters = &others}).ok());
  ASSERT_EQ(PartialExecutor::Run(second).value(), RunOutcome::kFinished);
  EXPECT_THAT(ToFloats(second.TakeFetches()[0]), ElementsAre(25, 36, 49, 64));
}

}  // namespace
}  // namespace caesura::testing
