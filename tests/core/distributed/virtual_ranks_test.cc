// SPDX-License-Identifier: Apache-2.0
#include "tests/core/distributed/virtual_ranks.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <set>
#include <utility>

#include "tests/core/distributed/communicator_suite.h"

namespace caesura::testing {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using Kind = VirtualFault::Kind;

Status SumOnce(Communicator& c, float* data) {
  const auto work = c.Start(Collective::AllReduce(DType::kFloat32, data, 1));
  const Status status = work.ok() ? (*work)->Wait(Clock::now() + c.timeout()) : work.status();
  if (!status.ok()) c.Abort(status.message());
  return status;
}

TEST(VirtualRanks, DoWhatEveryCommunicatorDoes) {
  for (const int size : {1, 2, 4}) {
    for (const uint64_t seed : {1, 2, 3}) {
      VirtualRanks ranks(size, {.seed = seed, .slow = 0});
      ranks.Run([&](int r) {
        for (const RankCheck& check : RankChecks())
          EXPECT_EQ(check.body(*ranks.communicator(r)), "") << check.name;
      });
      EXPECT_THAT(ranks.complaints(), IsEmpty());
      EXPECT_EQ(ranks.timeouts(), 0);
    }
  }
}

TEST(VirtualRanks, OneSeedIsOneRun) {
  const auto trace = [](uint64_t seed) {
    VirtualRanks ranks(3, {.seed = seed});
    ranks.Run([&](int r) {
      float data = 1;
      for (int k = 0; k < 5; ++k) ASSERT_TRUE(SumOnce(*ranks.communicator(r), &data).ok());
    });
    return std::pair(ranks.trace(), ranks.now());
  };
  EXPECT_EQ(trace(1), trace(1));
  EXPECT_NE(trace(1), trace(2));
}

// Each kind of fault before and after rank 1 has started its second collective, under twenty seeds.
TEST(VirtualRanks, Faults) {
  for (const Kind kind :
       {Kind::kKill, Kind::kError, Kind::kStall, Kind::kLoseOne, Kind::kLoseAll}) {
    for (const int call : {3, 4}) {
      for (const bool heard : {false, true}) {
        SCOPED_TRACE(std::to_string(static_cast<int>(kind)) + " at call " + std::to_string(call) +
                     (heard ? ", heard of" : ""));
        std::set<int> done;  // ranks that have the second sum
        for (uint64_t seed = 0; seed < 20; ++seed) {
          VirtualRanks ranks(3, {.seed = seed, .fault = {kind, 1, call}, .heard = heard});
          int sums = 0;
          ranks.Run([&](int r) {
            float data[2] = {1, 1};
            // A rank may hear of the fault before it has the first sum.
            Status status = SumOnce(*ranks.communicator(r), &data[0]);
            if (status.ok()) status = SumOnce(*ranks.communicator(r), &data[1]);
            EXPECT_EQ(status.code(), status.ok() ? StatusCode::kOk : StatusCode::kRankFailure);
            EXPECT_TRUE(!status.ok() || data[1] == 3);
            sums += status.ok();
          });
          EXPECT_TRUE(ranks.has_failed());
          EXPECT_EQ(ranks.is_dead(1), kind == Kind::kKill);
          EXPECT_THAT(ranks.complaints(), IsEmpty());
          if (heard && (kind == Kind::kKill || kind == Kind::kError)) {
            EXPECT_LT(ranks.now(), VirtualRanks::kTimeout);
          } else if (call == 3) {
            EXPECT_GE(ranks.timeouts(), 1);
            EXPECT_GT(ranks.now(), VirtualRanks::kTimeout);
          }
          done.insert(sums);
        }
        const bool sent = call == 4;
        const bool loses = kind == Kind::kLoseOne || kind == Kind::kLoseAll;
        if (sent && (kind == Kind::kStall || loses)) EXPECT_THAT(done, ElementsAre(3));
        else if (sent || loses) EXPECT_GE(done.size(), 2u);
        else
          EXPECT_LE(*done.rbegin(), kind == Kind::kStall ? 1 : 0);  // it comes, and all have sent
      }
    }
  }
}

TEST(VirtualRanks, MemoryInFlightIsNobodys) {
  VirtualRanks ranks(2, {.seed = 1});
  ranks.Run([&](int r) {
    float data = 1;
    const auto work =
        ranks.communicator(r)->Start(Collective::AllReduce(DType::kFloat32, &data, 1)).value();
    EXPECT_NE(data, 1);
    if (r == 0) data = 1;
    ASSERT_TRUE(work->Wait(Clock::now() + std::chrono::minutes(1)).ok());
    EXPECT_EQ(data, 2);
  });
  EXPECT_THAT(ranks.complaints(), ElementsAre(HasSubstr("rank 0 has changed the memory")));
}

TEST(VirtualRanks, AWorkEndsAfterItsCollective) {
  VirtualRanks ranks(2, {.seed = 1});
  float data[2] = {};
  ranks.Run([&](int r) {
    ASSERT_TRUE(
        ranks.communicator(r)->Start(Collective::AllReduce(DType::kFloat32, &data[r], 1)).ok());
    if (r == 0) ranks.communicator(r)->Abort("enough");
  });
  EXPECT_THAT(ranks.complaints(), ::testing::Each(HasSubstr("is in flight")));
  EXPECT_GE(ranks.complaints().size(), 1u);
}

}  // namespace
}  // namespace caesura::testing
