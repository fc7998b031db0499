// SPDX-License-Identifier: Apache-2.0
#include "training/command/isolated.h"

#include <gtest/gtest.h>
#include <signal.h>
#include <unistd.h>

namespace caesura::command {
namespace {

TEST(RunIsolatedTest, ResultsCrashesAndHangs) {
  EXPECT_EQ(RunIsolated([] { return std::string(); }, 60), "");
  const std::string large(1 << 20, 'x');
  EXPECT_EQ(RunIsolated([&] { return large; }, 60), large);
  EXPECT_EQ(RunIsolated(
                []() -> std::string {
                  ::kill(::getpid(), SIGKILL);
                  ::pause();
                  return "";
                },
                60),
            kCrashed);
  EXPECT_EQ(RunIsolated([]() -> std::string { ::_exit(3); }, 60), kCrashed);
  EXPECT_EQ(RunIsolated(
                []() -> std::string {
                  while (true) ::pause();
                },
                1),
            kTimedOut);
}

}  // namespace
}  // namespace caesura::command
