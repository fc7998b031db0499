// SPDX-License-Identifier: Apache-2.0
// The flag and the handlers only; suspended_step_test.cc has whole steps.
#include "training/session/run_control.h"

#include <gtest/gtest.h>

#include <thread>

namespace caesura {
namespace {

std::atomic<int> calls = 0;
void Count(int) { ++calls; }

TEST(SuspendOnSignalsTest, EachOfItsSignalsSetsTheFlagOnAnyThread) {
  const auto flag = std::make_shared<std::atomic<bool>>(false);
  const SuspendOnSignals guard(flag, {SIGUSR1, SIGUSR2});
  std::raise(SIGUSR1);
  EXPECT_TRUE(flag->exchange(false));
  std::thread([] { std::raise(SIGUSR2); }).join();
  EXPECT_TRUE(*flag);
}

TEST(SuspendOnSignalsTest, HandlersFromBeforeAreBackAfterIt) {
  struct sigaction action = {}, before = {};
  action.sa_handler = Count;
  ASSERT_EQ(sigaction(SIGUSR1, &action, &before), 0);
  calls = 0;
  const auto flag = std::make_shared<std::atomic<bool>>(false);
  {
    const SuspendOnSignals guard(flag, {SIGUSR1});
    std::raise(SIGUSR1);
  }
  EXPECT_EQ(calls, 0);
  EXPECT_TRUE(flag->exchange(false));
  std::raise(SIGUSR1);
  EXPECT_EQ(calls, 1);
  EXPECT_FALSE(*flag);
  sigaction(SIGUSR1, &before, nullptr);
}

// SIGKILL takes no handler: the others still do.
TEST(SuspendOnSignalsTest, ASignalThatTakesNoHandlerIsLeftOut) {
  const auto flag = std::make_shared<std::atomic<bool>>(false);
  const SuspendOnSignals guard(flag, {SIGKILL, SIGUSR1});
  std::raise(SIGUSR1);
  EXPECT_TRUE(*flag);
}

}  // namespace
}  // namespace caesura
