// SPDX-License-Identifier: Apache-2.0
// Runs that their callers stop or end between two steps (RunOptions::suspend, deadline, cancel).
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "core/distributed/communicator.h"
#include "core/distributed/run_collectives.h"
#include "core/execute/execution_observer.h"
#include "tests/core/execute/faulty_provider.h"
#include "tests/core/execute/graph_fixture.h"

namespace caesura::testing {
namespace {

using ::testing::ElementsAre;

// y = -x x
constexpr char kTwoSteps[] = "(float[2] x) => (float[2] y) { a = Neg (x) y = Mul (a, x) }";

// Calls a function at the end of each step.
class AtStepEnd : public ExecutionObserver {
 public:
  explicit AtStepEnd(std::function<void(int)> call) : call_(std::move(call)) {}
  void OnStepEnd(const ExecutionPlan&, const ExecutionState&, int step, const Status&) override {
    call_(step);
  }

 private:
  const std::function<void(int)> call_;
};

// The caller's flag or a time does it; what has run stays done.
TEST(RunsFromOutside, AreSuspendedBetweenTwoStepsAndGoOn) {
  auto provider = std::make_shared<FailingProvider>(Tiny()[0]);
  auto plan = PlanOf(GraphOf(kTwoSteps), {Ramp(Shape{2})}, {}, {provider});
  auto suspend = std::make_shared<std::atomic<bool>>(false);
  AtStepEnd observer([&](int step) { *suspend = step == 0; });
  ExecutionState state(plan);
  provider->FailAt(-1);
  ASSERT_TRUE(
      state.Start({Floats(Shape{2}, {1, 2})}, {.observers = {&observer}, .suspend = suspend}).ok());
  for (int i = 0; i < 2; ++i) {  // as long as the flag is up
    EXPECT_EQ(PartialExecutor::Run(state).value(), RunOutcome::kStopped);
    EXPECT_EQ(state.program_counter(), 1);
  }
  *suspend = false;
  state.set_deadline(std::chrono::steady_clock::now());
  EXPECT_EQ(PartialExecutor::Run(state).value(), RunOutcome::kStopped);
  EXPECT_EQ(state.program_counter(), 1);
  EXPECT_EQ(state.stage(), ExecutionState::Stage::kReady);
  state.set_deadline(std::nullopt);
  EXPECT_EQ(PartialExecutor::Run(state).value(), RunOutcome::kFinished);
  EXPECT_EQ(provider->calls(), 2);
  EXPECT_THAT(ToFloats(state.TakeFetches()[0]), ElementsAre(-1, -4));
}

// The other ranks would wait for it.
TEST(RunsFromOutside, AreNotSuspendedWithOtherRanks) {
  auto plan = PlanOf(GraphOf(kTwoSteps), {Ramp(Shape{2})});
  const auto ranks = LocalCommunicators(1);
  RunOptions options;
  options.suspend = std::make_shared<std::atomic<bool>>(true);
  options.deadline = std::chrono::steady_clock::now();
  options.collectives = std::make_shared<RunCollectives>(*ranks[0], std::chrono::seconds(60));
  EXPECT_THAT(ToFloats(RunPlan(plan, {Floats(Shape{2}, {1, 2})}, options)[0]), ElementsAre(-1, -4));
}

TEST(RunsFromOutside, AreEndedBeforeTheirFirstUpdateOnly) {
  std::shared_ptr<Graph> graph =
      GraphOf(R"((float[2] x) => (float[2] y, float[2] z) <float[2] w = {0, 0}> {
    y = Neg (x)
    w_now = test.Accumulate (w, x)
    z = Neg (y)
  })");
  auto plan = PlanOf(graph, {Ramp(Shape{2})}, {.parameters = {graph->FindValue("w")}});
  ASSERT_EQ(plan->first_write(), 1);
  for (const int at : {0, 1}) {  // the step after which the caller wants the run to end
    ParameterSet parameters;
    parameters.Add("w", Tensor::Of<float>(Shape{2}, {10, 20}));
    auto cancel = std::make_shared<std::atomic<bool>>(false);
    AtStepEnd observer([&](int step) { *cancel = *cancel || step == at; });
    ExecutionState state(plan);
    const Result<Values> results =
        Finish(state, {Floats(Shape{2}, {1, 2})},
               {.parameters = &parameters, .observers = {&observer}, .cancel = cancel});
    if (at == 0) {
      EXPECT_EQ(results.status().code(), StatusCode::kCancelled);
      EXPECT_EQ(state.stage(), ExecutionState::Stage::kFailed);
      EXPECT_EQ(state.program_counter(), 1);
      EXPECT_THAT(parameters.tensor(0).ToVector<float>(), ElementsAre(10, 20));
    } else {
      ASSERT_TRUE(results.ok()) << results.status().ToString();
      EXPECT_THAT(ToFloats(results->at(1)), ElementsAre(1, 2));
      EXPECT_THAT(parameters.tensor(0).ToVector<float>(), ElementsAre(11, 22));
    }
  }
}

}  // namespace
}  // namespace caesura::testing
