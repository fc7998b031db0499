// SPDX-License-Identifier: Apache-2.0
// Facts of ranks: each rank learns all of them, and they are told apart in few words.
#include "core/distributed/rank_facts.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/core/distributed/rank_threads.h"

namespace caesura::testing {
namespace {

using std::chrono::seconds;
using ::testing::ElementsAre;

TEST(RankFacts, EachRankLearnsAllTexts) {
  RunRanks(3, [](Communicator& c) {
    const std::string own(static_cast<size_t>(5 * c.rank()), 'x');
    EXPECT_THAT(GatherTexts(c, own, Clock::now() + seconds(60)).value(),
                ElementsAre("", "xxxxx", "xxxxxxxxxx"));
    const RankFacts facts = {{"lr", std::to_string(c.rank())}, {"", ""}, {"lr", "again"}};
    const auto all = GatherFacts(c, facts, Clock::now() + seconds(60)).value();
    EXPECT_EQ(all.at(static_cast<size_t>(c.rank())), facts);
    EXPECT_EQ(all.at(2).front().second, "2");
  });
}

TEST(RankFacts, DifferencesNameTheFactTheValuesAndTheRanks) {
  EXPECT_EQ(DifferencesOfRanks({{{"a", "1"}, {"b", "2"}}, {{"b", "2"}, {"a", "1"}}}), "");
  EXPECT_EQ(DifferencesOfRanks({{{"a", "1"}}, {{"a", "1"}}, {{"a", "3"}}}),
            "a is 1 on rank 0, 3 on rank 2");
  EXPECT_EQ(DifferencesOfRanks({{{"a", "1"}}, {{"b", "2"}, {"b", "3"}}}),
            "a is 1 on rank 0, nothing on rank 1; b is nothing on rank 0, 2, 3 on rank 1");
  const RankFacts four = {{"a", "1"}, {"b", "1"}, {"c", "1"}, {"d", "1"}};
  EXPECT_EQ(
      DifferencesOfRanks({four, {}}),
      "a is 1 on rank 0, nothing on rank 1; b is 1 on rank 0, nothing on rank 1; c is 1 on rank "
      "0, nothing on rank 1; and 1 more");
}

}  // namespace
}  // namespace caesura::testing
