// SPDX-License-Identifier: Apache-2.0
#include "core/distributed/simulated_communicator.h"

#include <gtest/gtest.h>

#include <thread>

#include "core/distributed/communicator.h"
#include "tests/core/distributed/communicator_suite.h"

namespace caesura::testing {
namespace {

constexpr Link kLink{.latency_seconds = 1e-5, .bytes_per_second = 1e9};

TEST(SimulatedCommunicator, DoesWhatEveryCommunicatorDoes) {
  auto ranks = LocalCommunicators(3);
  std::vector<std::thread> threads;
  for (auto& rank : ranks) {
    threads.emplace_back([&rank] {
      const auto simulated = SimulatedCommunicator(std::move(rank), kLink);
      for (const RankCheck& check : RankChecks())
        EXPECT_EQ(check.body(*simulated), "") << check.name;
    });
  }
  for (std::thread& thread : threads) thread.join();
}

TEST(SimulatedCommunicator, TakesWhatTheModelSays) {
  float data = 0;
  const auto sum = Collective::AllReduce(DType::kFloat32, &data, 1'000'000);
  // 4 MB around a ring of four: six messages of a quarter each.
  EXPECT_NEAR(CollectiveSeconds(sum, 4, kLink), 6 * (1e-5 + 1e-3), 1e-12);
  EXPECT_EQ(CollectiveSeconds(sum, 1, kLink), 0);
  const auto gather = Collective::AllGather(DType::kFloat64, &data, &data, 1000);
  EXPECT_NEAR(CollectiveSeconds(gather, 8, kLink), 7 * (1e-5 + 8e-6), 1e-12);
  const auto broadcast = Collective::Broadcast(DType::kFloat32, &data, 250);
  EXPECT_NEAR(CollectiveSeconds(broadcast, 8, kLink), 3e-5 + 1e-6, 1e-12);
}

TEST(SimulatedCommunicator, EndsNoCollectiveBeforeItsTime) {
  auto ranks = LocalCommunicators(2);
  ranks[0] = SimulatedCommunicator(std::move(ranks[0]),
                                   {.latency_seconds = 0.01, .bytes_per_second = 1e12});
  float data[2] = {};
  const auto began = Clock::now();
  std::vector<std::unique_ptr<Work>> works;
  for (int k = 0; k < 3; ++k) {
    works.push_back(ranks[0]->Start(Collective::AllReduce(DType::kFloat32, &data[0], 1)).value());
    ASSERT_TRUE(ranks[1]->Start(Collective::AllReduce(DType::kFloat32, &data[1], 1)).ok());
  }
  EXPECT_TRUE(works.back()->Wait(Clock::now() + std::chrono::seconds(60)).ok());
  EXPECT_GE(Clock::now() - began, std::chrono::milliseconds(60));  // one after the other
}

}  // namespace
}  // namespace caesura::testing
