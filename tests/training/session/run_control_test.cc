// SPDX-License-Identifier: Apache-2.0
// The flags and times that stop runs, without a session.
#include "training/session/run_control.h"

#include <gtest/gtest.h>

#include "core/execute/run_options.h"

namespace caesura {
namespace {

TEST(RunControlTest, RunsGoByItsFlagsAndItsDeadline) {
  RunControl control;
  RunOptions run;
  const auto now = std::chrono::steady_clock::now();
  control.set_deadline(now);
  control.Apply(run);
  EXPECT_EQ(run.deadline, now);
  EXPECT_FALSE(*run.suspend);
  control.set_suspend(true);
  EXPECT_TRUE(*run.suspend);
  EXPECT_FALSE(*run.cancel);
  control.set_terminate(true);
  EXPECT_TRUE(*run.cancel);
  EXPECT_TRUE(control.terminate());
}

TEST(RunControlTest, SessionsMayShareAFlag) {
  RunControl one, other;
  other.ShareSuspendFlag(one.suspend_flag());
  one.set_suspend(true);
  EXPECT_TRUE(*other.suspend_flag());
}

TEST(RunControlTest, APlaceIsValidOnce) {
  RunControl control;
  EXPECT_EQ(control.TakeSuspendAt(), INT_MAX);
  control.SuspendAt(3);
  EXPECT_EQ(control.TakeSuspendAt(), 3);
  EXPECT_EQ(control.TakeSuspendAt(), INT_MAX);
}

TEST(RunControlTest, StepsOfRanksRunAgainByTheEndOfWhatStoppedThem) {
  RunControl control;
  control.set_rank_asked(true);
  control.set_deadline(std::nullopt);  // there was none
  EXPECT_TRUE(control.rank_asked());
  control.set_deadline(std::chrono::steady_clock::now());
  control.set_deadline(std::nullopt);
  EXPECT_FALSE(control.rank_asked());
  control.set_rank_asked(true);
  control.set_suspend(false);
  EXPECT_FALSE(control.rank_asked());
}

}  // namespace
}  // namespace caesura
