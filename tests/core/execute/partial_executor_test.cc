// SPDX-License-Identifier: Apache-2.0
// The outcomes of PartialExecutor::Run: where a run stops, and what a step that throws leaves. Cuts
// at all places are in cut_anywhere_test.cc, yields in yield_test.cc, callers that stop a run in
// suspend_and_cancel_test.cc.
#include "core/execute/partial_executor.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <new>
#include <stdexcept>

#include "core/kernels/kernel_registry.h"
#include "tests/core/execute/faulty_provider.h"
#include "tests/core/execute/graph_fixture.h"

namespace caesura::testing {
namespace {

using ::testing::ElementsAre;

// Four steps; for x = {1, 2}: a = {-1, -2}, b = {1, 4}, c = {0, 2}, d = {-1, 0}.
constexpr char kFourSteps[] = R"((float[2] x) => (float[2] d) {
  a = Neg (x)
  b = Mul (a, a)
  c = Add (b, a)
  d = Sub (c, x)
})";

TEST(PartialExecutor, StopsBeforeTheLimitAndGoesOn) {
  auto provider = std::make_shared<FailingProvider>(Tiny()[0]);
  auto plan = PlanOf(GraphOf(kFourSteps), {Ramp(Shape{2})}, {}, {provider});
  ASSERT_EQ(plan->steps().size(), 4u);
  provider->FailAt(-1);  // counts from here on
  ExecutionState state(plan);
  ASSERT_TRUE(state.Start({Floats(Shape{2}, {1, 2})}, {}).ok());
  // Each limit, and the number of steps that have run then. A limit that is passed already, or is
  // no step at all, runs none.
  const std::pair<int, int> limits[] = {{0, 0}, {-3, 0}, {2, 2}, {2, 2}, {1, 2}, {3, 3}};
  for (const auto& [limit, ran] : limits) {
    EXPECT_EQ(PartialExecutor::Run(state, limit).value(), RunOutcome::kStopped) << limit;
    EXPECT_EQ(state.program_counter(), ran) << limit;
    EXPECT_EQ(provider->calls(), ran) << limit;
    EXPECT_EQ(state.stage(), ExecutionState::Stage::kReady);
  }
  EXPECT_EQ(PartialExecutor::Run(state, 4).value(), RunOutcome::kFinished);
  EXPECT_EQ(provider->calls(), 4);
  EXPECT_EQ(state.stage(), ExecutionState::Stage::kFinished);
  EXPECT_THAT(ToFloats(state.TakeFetches()[0]), ElementsAre(-1, 0));
}

TEST(PartialExecutor, APlanWithoutStepsIsFinishedAtOnce) {
  auto plan = PlanOf(GraphOf("(float[2] x) => (float[2] x) { }"), {Ramp(Shape{2})});
  ASSERT_TRUE(plan->steps().empty());
  ExecutionState state(plan);
  ASSERT_TRUE(state.Start({Floats(Shape{2}, {1, 2})}, {}).ok());
  EXPECT_EQ(PartialExecutor::Run(state, 0).value(), RunOutcome::kFinished);
  EXPECT_THAT(ToFloats(state.TakeFetches()[0]), ElementsAre(1, 2));
}

TEST(PartialExecutor, RunsOnlyWhatWasStarted) {
  auto plan = PlanOf(GraphOf(kFourSteps), {Ramp(Shape{2})});
  ExecutionState state(plan);
  EXPECT_EQ(PartialExecutor::Run(state).status().code(), StatusCode::kInvalidArgument);
  EXPECT_EQ(state.stage(), ExecutionState::Stage::kIdle);
  ASSERT_TRUE(state.Start({Floats(Shape{2}, {1, 2})}, {}).ok());
  ASSERT_TRUE(PartialExecutor::Run(state).ok());
  EXPECT_EQ(PartialExecutor::Run(state).status().code(), StatusCode::kInvalidArgument);
  EXPECT_EQ(state.stage(), ExecutionState::Stage::kFinished);  // the results are still there
  EXPECT_THAT(ToFloats(state.TakeFetches()[0]), ElementsAre(-1, 0));
}

// A yield counts as a step, and a limit beyond it does not reach through it.
TEST(PartialExecutor, ALimitStopsAtTheYieldBeforeIt) {
  auto plan = PlanOf(GraphOf(R"((float[2] x) => (float[2] y) {
    a = Neg (x)
    g = ai.caesura.YieldOp (a)
    y = Mul (g, a)
  })"),
                     {Ramp(Shape{2})});
  ExecutionState state(plan);
  ASSERT_TRUE(state.Start({Floats(Shape{2}, {1, 2})}, {}).ok());
  EXPECT_EQ(PartialExecutor::Run(state, 1).value(), RunOutcome::kStopped);
  EXPECT_EQ(state.yield_index(), -1);
  EXPECT_EQ(PartialExecutor::Run(state, 3).value(), RunOutcome::kYielded);
  EXPECT_EQ(state.program_counter(), 2);
  ASSERT_TRUE(state.Resume({Floats(Shape{2}, {5, 5})}).ok());
  EXPECT_EQ(PartialExecutor::Run(state, 2).value(), RunOutcome::kStopped);
  EXPECT_EQ(PartialExecutor::Run(state).value(), RunOutcome::kFinished);
  EXPECT_THAT(ToFloats(state.TakeFetches()[0]), ElementsAre(-5, -10));
}

// Kernels of others may throw. That is an error of the step, and the state can be started anew.
TEST(PartialExecutor, ExceptionsEndTheRunAndNameTheStep) {
  int kind = 0;
  const auto more = [&kind](KernelRegistry& registry) {
    registry.Add({.op_type = "Throw", .domain = "test", .create = [&kind](KernelInfo& info) {
                    info.SetOutput(0, DType::kFloat32, info.InputShape(0));
                    info.SetCompute([&kind](KernelContext& context) {
                      if (kind == 1) throw std::runtime_error("no luck");
                      if (kind == 2) throw std::bad_alloc();
                      std::copy_n(context.Input<float>(0), 2, context.Output<float>(0));
                    });
                    return Status();
                  }});
  };
  auto plan = PlanOf(GraphOf("(float[2] x) => (float[2] y) { [culprit] y = test.Throw (x) }"),
                     {Ramp(Shape{2})}, {}, {std::make_shared<TinyProvider>(nullptr, more)});
  ExecutionState state(plan);
  kind = 1;
  EXPECT_EQ(Finish(state, {Floats(Shape{2}, {1, 2})}).status().ToString(),
            "INTERNAL: [test::Throw 'culprit' on tiny] an exception ended the run: no luck");
  EXPECT_EQ(state.stage(), ExecutionState::Stage::kFailed);
  kind = 2;
  EXPECT_EQ(Finish(state, {Floats(Shape{2}, {1, 2})}).status().ToString(),
            "OUT_OF_MEMORY: [test::Throw 'culprit' on tiny] memory ran out");
  kind = 0;
  EXPECT_THAT(ToFloats(Finish(state, {Floats(Shape{2}, {1, 2})}).value()[0]), ElementsAre(1, 2));
}

}  // namespace
}  // namespace caesura::testing
