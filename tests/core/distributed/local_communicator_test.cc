// SPDX-License-Identifier: Apache-2.0
#include "core/distributed/communicator.h"

#include <gtest/gtest.h>

#include <cmath>
#include <future>
#include <limits>
#include <thread>
#include <vector>

#include "tests/core/distributed/communicator_suite.h"
#include "tests/core/distributed/rank_threads.h"

namespace caesura::testing {
namespace {

using std::chrono::milliseconds;
using std::chrono::seconds;

TEST(LocalCommunicator, DoesWhatEveryCommunicatorDoes) {
  for (const int size : {1, 2, 4}) {
    for (const RankCheck& check : RankChecks()) {
      RunRanks(size, [&](Communicator& c) { EXPECT_EQ(check.body(c), "") << check.name; });
    }
  }
}

TEST(LocalCommunicator, ANaNOfAnyRankIsTheExtreme) {
  for (const int nan_rank : {0, 1}) {
    for (const ReduceOp op : {ReduceOp::kMax, ReduceOp::kMin}) {
      RunRanks(2, [&](Communicator& c) {
        float value = c.rank() == nan_rank ? std::numeric_limits<float>::quiet_NaN() : 1;
        auto work = c.Start(Collective::AllReduce(DType::kFloat32, &value, 1, op));
        ASSERT_TRUE((*work)->Wait(Clock::now() + seconds(60)).ok());
        EXPECT_TRUE(std::isnan(value)) << "NaN of rank " << nan_rank;
      });
    }
  }
}

TEST(LocalCommunicator, ALateRankIsNamed) {
  const auto ranks = LocalCommunicators(3);
  float data[2] = {};
  auto work = ranks[0]->Start(Collective::AllReduce(DType::kFloat32, data, 2));
  ASSERT_TRUE(ranks[2]->Start(Collective::AllReduce(DType::kFloat32, data, 2)).ok());
  const Status status = (*work)->Wait(Clock::now() + milliseconds(1));
  EXPECT_EQ(status.code(), StatusCode::kRankFailure);
  EXPECT_NE(status.message().find("rank 1 has not come"), std::string::npos) << status.message();
}

TEST(LocalCommunicator, RanksThatDifferAreNamed) {
  RunRanks(2, [&](Communicator& c) {
    std::vector<float> data(4);
    auto work = c.Start(Collective::AllReduce(DType::kFloat32, data.data(), 3 + c.rank()));
    const Status status = (*work)->Wait(Clock::now() + seconds(60));
    EXPECT_EQ(status.code(), StatusCode::kRankFailure);
    EXPECT_NE(status.message().find("all_reduce of 4 float32 (sum) on rank 1"), std::string::npos)
        << status.message();
  });
}

TEST(LocalCommunicator, AnAbortEndsTheWaitOfOthers) {
  auto ranks = LocalCommunicators(2);
  float data = 0;
  auto work = ranks[0]->Start(Collective::AllReduce(DType::kFloat32, &data, 1));
  auto waits =
      std::async(std::launch::async, [&] { return (*work)->Wait(Clock::now() + seconds(60)); });
  ranks[1]->Abort("out of memory");
  const Status status = waits.get();
  EXPECT_EQ(status.code(), StatusCode::kRankFailure);
  EXPECT_NE(status.message().find("rank 1 has given up: out of memory"), std::string::npos);
  EXPECT_FALSE(ranks[0]->Start(Collective::AllReduce(DType::kFloat32, &data, 1)).ok());
}

TEST(LocalCommunicator, ARankThatEndsIsAnErrorForTheOthers) {
  auto ranks = LocalCommunicators(2);
  float data = 0;
  auto work = ranks[0]->Start(Collective::AllReduce(DType::kFloat32, &data, 1));
  ranks.pop_back();
  EXPECT_NE((*work)->Wait(Clock::now() + seconds(60)).message().find("rank 1 has ended"),
            std::string::npos);
}

}  // namespace
}  // namespace caesura::testing
