// SPDX-License-Identifier: Apache-2.0
#include "core/distributed/machine.h"

#include <gtest/gtest.h>

#include "tests/core/distributed/rank_threads.h"

namespace caesura::testing {
namespace {

TEST(Machine, RanksOnOneAreNumbered) {
  EXPECT_EQ(ThisMachine(), ThisMachine());
  RunRanks(3, [](Communicator& c) { EXPECT_EQ(RankOnMachine(c).value(), c.rank()); });
}

}  // namespace
}  // namespace caesura::testing
