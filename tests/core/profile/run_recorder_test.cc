// SPDX-License-Identifier: Apache-2.0
#include "core/profile/run_recorder.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/core/execute/training_step.h"

namespace caesura::testing {
namespace {

using ::testing::Contains;
using ::testing::StartsWith;

const auto kWithoutYields = [](ExecutionState& state) { return PartialExecutor::Run(state); };

RunOptions Watched(RunRecorder& recorder) {
  RunOptions options;
  options.observers = {&recorder};
  options.tag = "batch 17";
  return options;
}

TEST(RunRecorderTest, KeepsARunAsOneThoughItYields) {
  TrainingStep step;
  step.graph->nodes()[0]->set_source("net.py:7");
  auto plan = step.Plan();
  RunRecorder recorder;
  ExecutionState state(plan);
  ASSERT_TRUE(RunStep(step, state, kWithoutYields, Watched(recorder)).ok());
  const std::vector<RecordedRun> runs = recorder.Runs();
  ASSERT_EQ(runs.size(), 1u);
  const RecordedRun& run = runs[0];
  EXPECT_EQ(run.tag, "batch 17");
  EXPECT_FALSE(run.failed);
  EXPECT_EQ(run.threads, plan->threads());
  ASSERT_EQ(run.steps.size(), plan->steps().size());
  EXPECT_EQ(run.memory.samples.size(), run.steps.size());
  int yields = 0;
  int64_t before = 0, sum = 0;
  bool has_source = false;
  for (size_t i = 0; i < run.steps.size(); ++i) {
    const RecordedStep& recorded = run.steps[i];
    EXPECT_EQ(recorded.node, plan->steps()[i].node->name());
    EXPECT_GE(recorded.begin_ns, before);
    before = recorded.begin_ns;
    sum += recorded.duration_ns;
    yields += recorded.kind == PlanStep::Kind::kYield;
    has_source |= recorded.source == "net.py:7";
  }
  EXPECT_EQ(yields, 1);
  EXPECT_TRUE(has_source);
  EXPECT_LE(sum, run.duration_ns);
  EXPECT_THAT(run.steps[0].outputs,
              Contains(StartsWith(plan->steps()[0].node->outputs()[0]->name() + " float32[")));
}

TEST(RunRecorderTest, TellsRunsWithOneTagApart) {
  TrainingStep step;
  auto plan = step.Plan();
  RunRecorder recorder(2);
  for (int i = 0; i < 3; ++i) {
    ExecutionState state(plan);
    ASSERT_TRUE(RunStep(step, state, kWithoutYields, Watched(recorder)).ok());
  }
  const std::vector<RecordedRun> runs = recorder.Runs();
  ASSERT_EQ(runs.size(), 2u);
  EXPECT_EQ(recorder.dropped(), 1u);
  EXPECT_GE(runs[1].begin_ns, runs[0].begin_ns + runs[0].duration_ns);
  EXPECT_EQ(runs[0].memory.samples.size(), runs[1].memory.samples.size());
}

TEST(RunRecorderTest, DoesNotChangeResults) {
  TrainingStep step;
  auto plan = step.Plan();
  RunRecorder recorder;
  ExecutionState state(plan);
  auto results = RunStep(step, state, kWithoutYields, Watched(recorder));
  ASSERT_TRUE(results.ok());
  EXPECT_TRUE(*results == Uncut(step, plan));
}

}  // namespace
}  // namespace caesura::testing
