// SPDX-License-Identifier: Apache-2.0
// What breaks in a run is named, and breaks nothing else: the plan, other states and later runs are
// as good as new.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "core/kernels/kernel_registry.h"
#include "tests/core/execute/faulty_provider.h"
#include "tests/core/execute/training_step.h"

namespace caesura::testing {
namespace {

using ::testing::HasSubstr;

const auto kStraight = [](ExecutionState& state) { return PartialExecutor::Run(state); };

TEST(Faults, AKernelThatFailsAtEachNode) {
  TrainingStep step;
  auto provider = std::make_shared<FailingProvider>(std::make_shared<TinyProvider>());
  auto plan = step.Plan({provider});
  provider->FailAt(-1);
  const StepResults expected = Uncut(step, plan);
  const int calls = provider->calls();
  EXPECT_GT(calls, 8);
  ExecutionState state(plan), other(plan);
  for (int k = 0; k < calls; ++k) {
    provider->FailAt(k);
    auto results = RunStep(step, state, kStraight);
    ASSERT_FALSE(results.ok()) << k;
    EXPECT_EQ(results.status().code(), StatusCode::kProviderFailure);
    EXPECT_EQ(state.stage(), ExecutionState::Stage::kFailed);
    const PlanStep& failed = plan->steps()[state.program_counter()];
    EXPECT_EQ(results.status().message(),
              "[" + failed.node->Label().substr(1, failed.node->Label().size() - 2) +
                  " on tiny] planted failure");
    EXPECT_FALSE(PartialExecutor::Run(state).ok());  // not without Start
    EXPECT_FALSE(state.Clone().ok());
    provider->FailAt(-1);
    for (ExecutionState* later : {&state, &other}) {
      auto again = RunStep(step, *later, kStraight);
      ASSERT_TRUE(again.ok()) << again.status().ToString();
      EXPECT_TRUE(*again == expected) << k;
    }
  }
}

TEST(Faults, OneStateFailsWhileAnotherIsSuspended) {
  TrainingStep step;
  auto provider = std::make_shared<FailingProvider>(std::make_shared<TinyProvider>());
  auto plan = step.Plan({provider});
  provider->FailAt(-1);
  const StepResults expected = Uncut(step, plan);
  ExecutionState kept(plan), failing(plan);
  auto run = [&](ExecutionState& state) {
    auto outcome = PartialExecutor::Run(state);
    if (outcome.ok() && *outcome == RunOutcome::kYielded) {
      provider->FailAt(2);
      EXPECT_FALSE(RunStep(step, failing, kStraight).ok());
      provider->FailAt(-1);
    }
    return outcome;
  };
  auto results = RunStep(step, kept, run);
  ASSERT_TRUE(results.ok());
  EXPECT_TRUE(*results == expected);
}

TEST(Faults, EachAllocationFailingInTurn) {
  TrainingStep step;
  FailingAllocator allocator;
  auto plan = step.Plan({std::make_shared<TinyProvider>(&allocator)});
  const StepResults expected = Uncut(step, plan);
  allocator.Heal();
  {
    ExecutionState state(plan);
    ASSERT_TRUE(RunStep(step, state, kStraight).ok());
  }
  const int calls = allocator.calls();
  EXPECT_GE(calls, 4);  // arena, two fetches, one of them at the yield, copies
  for (int n = 0; n < calls; ++n) {
    ExecutionState state(plan);
    allocator.FailAfter(n);
    auto results = RunStep(step, state, kStraight);
    ASSERT_FALSE(results.ok()) << n;
    EXPECT_EQ(results.status().code(), StatusCode::kOutOfMemory) << results.status().ToString();
    EXPECT_THAT(results.status().message(), HasSubstr("planted"));
    allocator.Heal();
    auto again = RunStep(step, state, kStraight);
    ASSERT_TRUE(again.ok()) << again.status().ToString();
    EXPECT_TRUE(*again == expected) << n;
  }
}

TEST(Faults, EachAllocationOfLateStepsFailingInTurn) {
  auto graph = GraphOf(R"((float[6] x, int64[2] to) => (float[a,b] y, int64[1,n] at) {
    s = Reshape (x, to)
    y = Neg (s)
    at = NonZero (x)
  })");
  const Values feeds = {Ramp(Shape{6}), Tensor::Of<int64_t>(Shape{2}, {2, 3})};
  FailingAllocator allocator;
  auto plan = PlanOf(graph, feeds, {}, {std::make_shared<TinyProvider>(&allocator)});
  allocator.Heal();
  const Values expected = RunPlan(plan, feeds);
  const int calls = allocator.calls();
  for (int n = 0; n < calls; ++n) {
    ExecutionState state(plan);
    allocator.FailAfter(n);
    EXPECT_EQ(Finish(state, feeds).status().code(), StatusCode::kOutOfMemory) << n;
    allocator.Heal();
    auto again = Finish(state, feeds);
    ASSERT_TRUE(again.ok());
    EXPECT_TRUE(SameBits(*again, expected));
  }
}

TEST(Faults, CloneAndRelocateWithoutMemory) {
  TrainingStep step;
  FailingAllocator allocator;
  auto plan = step.Plan({std::make_shared<TinyProvider>(&allocator)});
  const StepResults expected = Uncut(step, plan);
  ExecutionState state(plan);
  auto run = [&](ExecutionState& s) -> Result<RunOutcome> {
    for (;;) {
      auto outcome = PartialExecutor::Run(s, s.program_counter() + 1);
      if (!outcome.ok() || *outcome != RunOutcome::kStopped) return outcome;
      allocator.FailAfter(0);
      EXPECT_EQ(s.Clone().status().code(), StatusCode::kOutOfMemory);
      EXPECT_EQ(s.Relocate(0xff).code(), StatusCode::kOutOfMemory);
      allocator.Heal();
    }
  };
  auto results = RunStep(step, state, run);
  ASSERT_TRUE(results.ok());
  EXPECT_TRUE(*results == expected);  // a failed attempt has changed nothing
}

TEST(Faults, ErrorsNameOpNodeProviderAndSource) {
  auto more = [](KernelRegistry& registry) {
    auto create = [](KernelInfo& info) {
      info.SetOutput(0, DType::kFloat32, info.InputShape(0));
      const bool named = info.Attr<int64_t>("named", 0) != 0;
      info.SetCompute([label = info.node().Label(), named](KernelContext&) {
        return InvalidArgument(named ? label + " got a bad index" : "got a bad index");
      });
      return Status();
    };
    registry.Add({.op_type = "Bad", .domain = "test", .create = create});
  };
  for (const char* named : {"", " <named = 1>"}) {
    auto graph = GraphOf("(float[2] x) => (float[2] y) { [culprit] y = test.Bad" +
                         std::string(named) + " (x) }");
    graph->nodes()[0]->set_source("net.py:12 in Net.forward");
    auto plan =
        PlanOf(graph, {Ramp(Shape{2})}, {}, {std::make_shared<TinyProvider>(nullptr, more)});
    ExecutionState state(plan);
    EXPECT_EQ(Finish(state, {Ramp(Shape{2})}).status().ToString(),
              "INVALID_ARGUMENT: [test::Bad 'culprit' on tiny] got a bad index (from net.py:12 in "
              "Net.forward)");
  }
}

TEST(Faults, LateStepsNameTheNodeToo) {
  auto graph =
      GraphOf("(float[6] x, int64[2] to) => (float[a,b] y) { [shape_it] y = Reshape (x, to) }");
  const RuntimeValue to = Tensor::Of<int64_t>(Shape{2}, {4, 4});
  auto plan = PlanOf(graph, {Ramp(Shape{6}), to});
  ExecutionState state(plan);
  EXPECT_EQ(Finish(state, {Ramp(Shape{6}), to}).status().ToString(),
            "INVALID_ARGUMENT: [Reshape 'shape_it' on tiny] element counts differ");
}

TEST(Faults, WrongFeedsAreRefusedBeforeAnythingRuns) {
  TrainingStep step;
  auto plan = step.Plan();
  ExecutionState state(plan);
  ParameterSet parameters = step.Parameters();
  RunOptions options;
  options.parameters = &parameters;
  EXPECT_THAT(state.Start({}, options).message(), HasSubstr("takes 1 feeds, got 0"));
  EXPECT_THAT(
      state.Start({Ramp(Shape{4, 2})}, options).message(),
      HasSubstr("feed 'x' is not of the dtype, shape or value that the plan was made for: expected "
                "float32[4, 3], got float32[4, 2]"));
  EXPECT_THAT(state.Start({Tensor::Zeros(DType::kFloat64, Shape{4, 3})}, options).message(),
              HasSubstr("float64[4, 3]"));
  EXPECT_THAT(state.Start(step.feeds, {}).message(),
              HasSubstr("has 2 parameters, the run brings fewer"));
  ParameterSet small;
  small.Add("w", Tensor::Zeros(DType::kFloat32, Shape{2}));
  small.Add("seen", Tensor::Zeros(DType::kFloat32, Shape{4, 3}));
  options.parameters = &small;
  EXPECT_THAT(state.Start(step.feeds, options).message(), HasSubstr("parameter 'w' has 8 bytes"));
  EXPECT_FALSE(PartialExecutor::Run(state).ok());
  EXPECT_FALSE(state.Relocate(0).ok());
  EXPECT_FALSE(state.Resume({}).ok());
  EXPECT_TRUE(*RunStep(step, state, kStraight) == Uncut(step, plan));
}

}  // namespace
}  // namespace caesura::testing
