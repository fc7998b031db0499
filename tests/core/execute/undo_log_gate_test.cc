// SPDX-License-Identifier: Apache-2.0
// Updates of a device: kept in its memory, or not at all where they wait at a gate. The real gate
// is in tests/training/cuda_gate_test.cc.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "core/execute/undo_log.h"
#include "tests/core/execute/gated_provider.h"
#include "tests/core/execute/parameter_updates.h"

namespace caesura::testing {
namespace {

using ::testing::ElementsAre;

// A run on a device that is given up before its last update, or goes to its end.
struct GatedRun {
  GateRecord gate;
  CountingDevice device{{.more = [this](KernelRegistry& r) { AddHeldAccumulate(r, &gate); }}};
  Updates run{
      kUpdatesAtTheEnd,
      {std::make_shared<GatedProvider>(device.providers()[0], &gate), device.providers()[1]}};
  ExecutionState state{run.plan};

  Result<RunOutcome> Run(UndoLog* log, int limit) {
    device.Reset();
    gate.calls.clear();
    const Status started = state.Start(run.feeds, {.parameters = &run.parameters, .undo = log});
    return started.ok() ? PartialExecutor::Run(state, limit) : started;
  }
};

TEST(UndoLog, KeepsADevicesParametersThere) {
  GatedRun gated;
  const int count = static_cast<int>(gated.run.plan->steps().size());
  gated.gate.may_close = false;  // another thread has closed it
  for (const bool may_hold : {false, true}) {
    UndoLog log(*gated.run.plan, UndoScope::kSteps, may_hold);
    EXPECT_EQ(log.may_hold(), may_hold);
    ASSERT_EQ(gated.Run(&log, count - 1).value(), RunOutcome::kStopped);
    EXPECT_FALSE(log.holds());
    EXPECT_EQ(gated.device.counts().copies_within, 1u);
    EXPECT_EQ(gated.device.counts().copies_to_host, 0u);
    EXPECT_THAT(gated.run[0], ElementsAre(9, 18));
    EXPECT_TRUE(log.Undo(gated.state));
    EXPECT_THAT(gated.run[0], ElementsAre(10, 20));
    EXPECT_EQ(gated.gate.calls.size(), may_hold ? 1u : 0u);
  }
}

TEST(UndoLog, CopiesNothingWhereUpdatesWaitAtAGate) {
  GatedRun gated;
  const int count = static_cast<int>(gated.run.plan->steps().size());
  for (const bool forgotten : {false, true}) {  // by Undo, or as the log goes
    {
      UndoLog log(*gated.run.plan, UndoScope::kSteps, true);
      ASSERT_EQ(gated.Run(&log, count - 1).value(), RunOutcome::kStopped);
      EXPECT_TRUE(log.holds());
      EXPECT_NE(log.HostMemory(8), nullptr);
      if (!forgotten) {
        EXPECT_TRUE(log.Undo(gated.state));
        EXPECT_FALSE(log.holds());
      }
    }
    EXPECT_THAT(gated.gate.calls, ElementsAre("close", "open"));
    EXPECT_THAT(gated.run[0], ElementsAre(10, 20));
  }
  UndoLog log(*gated.run.plan, UndoScope::kSteps, true);
  EXPECT_EQ(log.HostMemory(8), nullptr);  // nothing waits
  ASSERT_EQ(gated.Run(&log, count).value(), RunOutcome::kFinished);
  EXPECT_THAT(gated.gate.calls, ElementsAre("close", "open to write", "wait"));
  EXPECT_EQ(gated.device.counts().copies_within, 0u);
  EXPECT_FALSE(log.holds());
  EXPECT_THAT(gated.run[0], ElementsAre(9, 18));
  EXPECT_THAT(gated.run[1], ElementsAre(0, -1));
  EXPECT_FALSE(log.Undo(gated.state));  // the updates have written, and nothing was kept
}

}  // namespace
}  // namespace caesura::testing
