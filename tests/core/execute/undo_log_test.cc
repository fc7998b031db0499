// SPDX-License-Identifier: Apache-2.0
// Overwritten parameters come back when a run fails or is given up; nothing is kept where it can do
// neither. Updates that wait at a gate are in undo_log_gate_test.cc.
#include "core/execute/undo_log.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "core/kernels/kernel_registry.h"
#include "core/providers/cpu_provider.h"
#include "tests/core/execute/faulty_provider.h"
#include "tests/core/execute/parameter_updates.h"

namespace caesura::testing {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

// Parameters w and v are updated, w twice; u is only read.
constexpr char kUpdates[] = R"((float[2] x) => (float[2] y)
    <float[2] w = {10, 20}, float[2] v = {1, 1}, float[2] u = {3, 3}> {
  w_once = test.Accumulate (w, x)
  w_twice = test.Accumulate (w_once, x)
  v_now = test.Accumulate (v, u)
  y = Neg (x)
})";

ProviderList CpuWithUpdates() {
  return {MakeCpuProvider([](KernelRegistry& registry) {
    registry.Add({.op_type = "Accumulate",
                  .domain = "test",
                  .aliases = {InPlace(0, 0)},
                  .create = CreateAccumulate});
  })};
}

TEST(UndoLog, PutsBackWhatARunHasWritten) {
  auto provider = std::make_shared<FailingProvider>(Tiny()[0], "", /*scribbles=*/true);
  Updates run(kUpdates, {provider});
  for (int k = 0; k < 4; ++k) {  // the kernel call that fails, with garbage in its outputs
    UndoLog log(*run.plan, UndoScope::kSteps, /*may_hold=*/false);
    ExecutionState state(run.plan);
    provider->FailAt(k);
    ASSERT_FALSE(Finish(state, run.feeds, {.parameters = &run.parameters, .undo = &log}).ok());
    EXPECT_TRUE(log.Undo(state)) << k;
    EXPECT_THAT(run[0], ElementsAre(10, 20)) << k;
    EXPECT_THAT(run[1], ElementsAre(1, 1)) << k;
    EXPECT_THAT(run[2], ElementsAre(3, 3)) << k;
  }
  provider->FailAt(-1);
  UndoLog log(*run.plan, UndoScope::kSteps, false);
  ExecutionState state(run.plan);
  ASSERT_TRUE(Finish(state, run.feeds, {.parameters = &run.parameters, .undo = &log}).ok());
  EXPECT_THAT(run[0], ElementsAre(12, 24));
  EXPECT_THAT(run[1], ElementsAre(4, 4));
}

// w and v, each once; and a step does not run if there is no memory for what it overwrites.
TEST(UndoLog, KeepsEachWrittenParameterOnce) {
  FailingAllocator allocator;
  Updates run(kUpdates, {std::make_shared<TinyProvider>(&allocator)});
  const auto finish = [&](UndoLog* log, ExecutionState& state) {
    return Finish(state, run.feeds, {.parameters = &run.parameters, .undo = log}).status();
  };
  int calls[2];
  for (const bool kept : {false, true}) {
    UndoLog log(*run.plan, UndoScope::kAll, false);
    ExecutionState state(run.plan);
    allocator.Heal();
    ASSERT_TRUE(finish(kept ? &log : nullptr, state).ok());
    calls[kept] = allocator.calls();
  }
  EXPECT_EQ(calls[1] - calls[0], 2);
  const std::vector<float> w = run[0], v = run[1];
  for (int n = 0; n < calls[1]; ++n) {
    UndoLog log(*run.plan, UndoScope::kAll, false);
    ExecutionState state(run.plan);
    allocator.FailAfter(n);
    EXPECT_EQ(finish(&log, state).code(), StatusCode::kOutOfMemory) << n;
    if (state.stage() == ExecutionState::Stage::kFailed) {
      EXPECT_TRUE(log.Undo(state)) << n;
    }
    EXPECT_EQ(run[0], w) << n;
    EXPECT_EQ(run[1], v) << n;
  }
}

TEST(UndoLog, IsNeededWhereARunMayFailAfterItsFirstUpdate) {
  const auto needed = [](const std::string& body, ProviderList providers, UndoScope scope) {
    return UndoLog(*Updates(body, std::move(providers)).plan, scope, false).needed();
  };
  const std::string after_a_body = R"((float[2] x, bool c) => (float[2] y) <float[2] w = {1, 1}> {
    w_now = test.Accumulate (w, x)
    y = If (c) <then_branch = t () => (float[2] a) { a = Neg (x) },
                else_branch = e () => (float[2] b) { b = Abs (x) }>
  })";
  const std::string none = "(float[2] x) => (float[2] y) <float[2] w = {1, 1}> { y = Add (x, w) }";
  EXPECT_FALSE(needed(kUpdatesAtTheEnd, CpuWithUpdates(), UndoScope::kSteps));
  EXPECT_TRUE(needed(kUpdatesAtTheEnd, CpuWithUpdates(), UndoScope::kAll));
  EXPECT_TRUE(needed(kUpdatesAtTheEnd, Tiny(), UndoScope::kSteps));  // whose kernels may fail
  EXPECT_FALSE(needed(none, Tiny(), UndoScope::kAll));
  const Values feeds = {Ramp(Shape{2}), Tensor::Of<bool>(Shape{}, {true})};
  const auto graph = GraphOf(after_a_body);
  const auto plan = PlanOf(graph, feeds, {.parameters = {graph->FindValue("w")}}, CpuWithUpdates());
  EXPECT_TRUE(UndoLog(*plan, UndoScope::kSteps, false).needed());
}

// An update whose sizes are known only at run time is kept, too. It must be of the optimizer: by
// that it is known before it runs.
TEST(UndoLog, KeepsUpdatesThatAreSizedAtRunTime) {
  for (const Phase phase : {Phase::kForward, Phase::kOptimizer}) {
    const auto graph = GraphOf(R"((float[2] x) => (float[2] y)
        <float[2] w = {10, 20}, float zero = {0}> {
      c = Greater (x, zero)
      g = Compress <axis = 0> (x, c)
      w_now = test.Accumulate (w, g)
      y = Neg (x)
    })");
    graph->nodes()[2]->set_phase(phase);
    Value* w = graph->FindValue("w");
    ParameterSet parameters;
    parameters.Add("w", graph->Initializer(w)->Clone().value());
    graph->SetInitializer(w, parameters.tensor(0));
    const Values feeds = {Floats(Shape{2}, {1, 2})};
    const auto plan = PlanOf(graph, feeds, {.parameters = {w}}, CpuWithUpdates());
    UndoLog log(*plan, UndoScope::kAll, false);
    ExecutionState state(plan);
    ASSERT_TRUE(state.Start(feeds, {.parameters = &parameters, .undo = &log}).ok());
    const auto outcome = PartialExecutor::Run(state, 3);
    if (phase == Phase::kForward) {
      EXPECT_THAT(outcome.status().message(), HasSubstr("is no node of the optimizer"));
    } else {
      EXPECT_EQ(*outcome, RunOutcome::kStopped);
      EXPECT_THAT(parameters.tensor(0).ToVector<float>(), ElementsAre(11, 22));
      EXPECT_TRUE(log.Undo(state));
    }
    EXPECT_THAT(parameters.tensor(0).ToVector<float>(), ElementsAre(10, 20));
  }
}

// The scope says which failures count: a caller's is one after the last step that may fail.
TEST(UndoLog, PutsBackNothingWhereNotAllWasKept) {
  for (const UndoScope scope : {UndoScope::kSteps, UndoScope::kAll}) {
    Updates run(kUpdatesAtTheEnd, CpuWithUpdates());
    UndoLog log(*run.plan, scope, false);
    ExecutionState state(run.plan);
    ASSERT_TRUE(state.Start(run.feeds, {.parameters = &run.parameters, .undo = &log}).ok());
    ASSERT_EQ(PartialExecutor::Run(state, 2).value(), RunOutcome::kStopped);
    EXPECT_THAT(run[0], ElementsAre(9, 18));
    const bool undone = scope == UndoScope::kAll;
    EXPECT_EQ(log.Undo(state), undone);
    EXPECT_THAT(run[0], undone ? ElementsAre(10, 20) : ElementsAre(9, 18));
  }
}

}  // namespace
}  // namespace caesura::testing
