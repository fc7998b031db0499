// SPDX-License-Identifier: Apache-2.0
// The collectives of one run: known by numbers, ended with the run, and no use after a failure.
#include "core/distributed/run_collectives.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <vector>

#include "tests/core/distributed/faulty_communicator.h"
#include "tests/core/distributed/rank_threads.h"

namespace caesura::testing {
namespace {

using std::chrono::milliseconds;
using std::chrono::seconds;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

Collective SumOf(std::vector<float>& data) {
  return Collective::AllReduce(DType::kFloat32, data.data(), static_cast<int64_t>(data.size()));
}

TEST(RunCollectives, AreWaitedForByNumberInAnyOrder) {
  RunRanks(3, [](Communicator& c) {
    const auto rank = static_cast<float>(c.rank());
    std::vector<float> first = {rank, 10}, second = {rank * rank}, third = {1, 1, 1};
    RunCollectives run(c, seconds(60));
    EXPECT_EQ(run.rank(), c.rank());
    EXPECT_EQ(run.size(), 3);
    ASSERT_TRUE(run.Start(7, SumOf(first)).ok());
    ASSERT_TRUE(run.Start(2, SumOf(second)).ok());
    ASSERT_TRUE(run.Wait(2).ok());
    EXPECT_THAT(second, ElementsAre(5));  // 0 + 1 + 4
    ASSERT_TRUE(run.Run(SumOf(third)).ok());
    EXPECT_THAT(third, ElementsAre(3, 3, 3));
    ASSERT_TRUE(run.Wait(7).ok());
    EXPECT_THAT(first, ElementsAre(3, 30));
  });
}

TEST(RunCollectives, EachIsWaitedForOnce) {
  const auto ranks = LocalCommunicators(1);
  std::vector<float> data = {4};
  RunCollectives run(*ranks[0], seconds(60));
  ASSERT_TRUE(run.Start(3, SumOf(data)).ok());
  ASSERT_TRUE(run.Wait(3).ok());
  EXPECT_EQ(run.Wait(3).ToString(), "INTERNAL: no collective 3 is in flight");
  ASSERT_TRUE(run.Start(3, SumOf(data)).ok());  // the number is free again, and the rank is well
  EXPECT_TRUE(run.Wait(3).ok());
}

TEST(RunCollectives, EndsWhatIsInFlight) {
  auto ranks = LocalCommunicators(2);
  {
    std::vector<float> data(8);
    RunCollectives run(*ranks[0], seconds(60));
    ASSERT_TRUE(run.Start(3, Collective::AllReduce(DType::kFloat32, data.data(), 8)).ok());
    EXPECT_EQ(run.Wait(4).code(), StatusCode::kInternal);
  }
  float other = 0;
  EXPECT_EQ(ranks[1]->Start(Collective::AllReduce(DType::kFloat32, &other, 1)).status().code(),
            StatusCode::kRankFailure);
}

// A run that has waited for all of its collectives leaves the communicator to the next one.
TEST(RunCollectives, ARunThatIsDoneEndsNothing) {
  RunRanks(2, [](Communicator& c) {
    for (int step = 0; step < 3; ++step) {
      std::vector<float> data = {1};
      RunCollectives run(c, seconds(60));
      ASSERT_TRUE(run.Start(0, SumOf(data)).ok());
      ASSERT_TRUE(run.Wait(0).ok()) << step;
      EXPECT_THAT(data, ElementsAre(2));
    }
  });
}

// At the start or at the wait: the others learn it, and nothing is in flight any more.
TEST(RunCollectives, AFailureEndsTheCommunicator) {
  enum class At { kStart, kWait, kRun };
  for (const At at : {At::kStart, At::kWait, At::kRun}) {
    const auto ranks = LocalCommunicators(2);
    FaultyCommunicator faulty(*ranks[0]);
    std::vector<float> first = {1}, second = {2}, other = {3};
    RunCollectives run(faulty, seconds(60));
    ASSERT_TRUE(run.Start(1, SumOf(first)).ok());
    if (at == At::kWait) {
      ASSERT_TRUE(run.Start(2, SumOf(second)).ok());
    }
    faulty.At(0, [](const Collective&) { return ProviderFailure("planted"); });
    const Status failed = at == At::kStart  ? run.Start(2, SumOf(second))
                          : at == At::kWait ? run.Wait(2)
                                            : run.Run(SumOf(second));
    EXPECT_EQ(failed.ToString(), "PROVIDER_FAILURE: planted");
    EXPECT_EQ(run.Wait(1).code(), StatusCode::kInternal);
    const Status others = ranks[1]->Start(SumOf(other)).status();
    EXPECT_EQ(others.code(), StatusCode::kRankFailure);
    EXPECT_THAT(others.message(), HasSubstr("planted"));
  }
}

TEST(RunCollectives, AWaitEndsAtItsTimeout) {
  const auto ranks = LocalCommunicators(2);  // the other one never comes
  std::vector<float> data = {1};
  for (const bool at_once : {false, true}) {
    RunCollectives run(*ranks[0], milliseconds(1));
    const Status started = at_once ? Status() : run.Start(0, SumOf(data));
    ASSERT_TRUE(started.ok());
    EXPECT_EQ((at_once ? run.Run(SumOf(data)) : run.Wait(0)).code(), StatusCode::kRankFailure);
  }
}

TEST(RunCollectives, RanksAgreeOnFlagAndSum) {
  for (const int raised : {-1, 0, 2}) {  // the rank whose flag is up; -1: none
    RunRanks(3, [raised](Communicator& c) {
      auto flag = std::make_shared<std::atomic<bool>>(c.rank() == raised);
      RunCollectives run(c, seconds(60), c.rank() == 1 ? nullptr : flag);
      EXPECT_FALSE(run.agreed());
      run.Share(0.5 + c.rank());
      ASSERT_TRUE(run.Agree().ok());
      EXPECT_TRUE(run.agreed());
      EXPECT_EQ(run.flag_raised(), raised >= 0);
      EXPECT_EQ(run.shared_sum(), 4.5);  // 0.5 + 1.5 + 2.5
      flag->store(false);
      ASSERT_TRUE(run.Agree().ok());  // anew
      EXPECT_FALSE(run.flag_raised());
      EXPECT_EQ(run.shared_sum(), 4.5);
    });
  }
}

TEST(RunCollectives, CompareWordsBeforeTheFirstCollective) {
  for (const bool at_once : {true, false}) {
    for (const bool differs : {true, false}) {
      RunRanks(3, [&](Communicator& c) {
        const int64_t words[] = {7, differs && c.rank() == 1 ? 2 : 1};
        std::vector<float> data = {1};
        {
          RunCollectives run(c, seconds(60));
          run.Compare(words, {}, at_once);
          ASSERT_TRUE(run.Begin().ok());
          const Status status = run.Run(SumOf(data));
          EXPECT_EQ(status.code(), differs ? StatusCode::kInvalidArgument : StatusCode::kOk);
          EXPECT_EQ(run.differs(), differs);
          EXPECT_THAT(data, ElementsAre(differs ? 1 : 3));
        }
        data = {1};
        RunCollectives next(c, seconds(60));  // the communicator is of use
        ASSERT_TRUE(next.Run(SumOf(data)).ok());
        EXPECT_THAT(data, ElementsAre(3));
      });
    }
  }
}

TEST(RunCollectives, ExchangeNothingOfRowsThatNoRankUses) {
  RunRanks(3, [](Communicator& c) {
    const int64_t words[] = {7};
    const int64_t uses[] = {c.rank() == 1 ? 1 : 0, c.rank() == 2 ? 2 : 0};  // rows 0 and 65
    std::vector<float> data = {1}, other = {1}, idle = {1};
    RunCollectives run(c, seconds(60));
    run.Compare(words, uses, /*at_once=*/true);
    ASSERT_TRUE(run.Begin().ok());
    ASSERT_TRUE(run.Start(0, SumOf(data), 0).ok());
    ASSERT_TRUE(run.Start(1, SumOf(idle), 1).ok());
    ASSERT_TRUE(run.Start(2, SumOf(other), 65).ok());
    for (const int64_t number : {0, 1, 2}) ASSERT_TRUE(run.Wait(number).ok());
    EXPECT_THAT(data, ElementsAre(3));
    EXPECT_THAT(idle, ElementsAre(1));
    EXPECT_THAT(other, ElementsAre(3));
    EXPECT_TRUE(run.used(-1));
    EXPECT_TRUE(run.used(0));
    EXPECT_FALSE(run.used(1));
    EXPECT_TRUE(run.used(65));
    EXPECT_TRUE(run.used(100000));  // a model from a file may name it
  });
}

// The first run has no room for its load beside the words yet.
TEST(RunCollectives, ALoadIsExchangedInOneMeeting) {
  for (const int size : {2, 3}) {
    RunRanks(size, [&](Communicator& inner) {
      FaultyCommunicator c(inner);
      int started = 0;
      c.AtStarts([&](const Collective&, int) { ++started; });
      for (const int exchanges : {2, 1, 1}) {
        const auto rank = static_cast<float>(c.rank());
        const int64_t words[] = {7}, uses[] = {c.rank() == 1 ? 1 : 0};
        std::vector<float> sum = {1 + rank, 2, 3}, first = {5 + rank, 6}, idle = {rank, rank};
        std::vector<float> parts(2 * static_cast<size_t>(size), rank), part(2);
        started = 0;
        auto flag = std::make_shared<std::atomic<bool>>(c.rank() == 1);
        RunCollectives run(c, seconds(60), flag);
        run.Share(1 + c.rank());
        run.Compare(words, uses, /*at_once=*/true, /*load=*/12);
        ASSERT_TRUE(run.Begin().ok());
        ASSERT_TRUE(run.Start(0, SumOf(sum), 0).ok());
        ASSERT_TRUE(run.Start(1, SumOf(idle), 1).ok());
        ASSERT_TRUE(run.Start(2, Collective::Broadcast(DType::kFloat32, first.data(), 2, 1)).ok());
        ASSERT_TRUE(
            run.Start(3, Collective::ReduceScatter(DType::kFloat32, parts.data(), part.data(), 2))
                .ok());
        EXPECT_EQ(started, exchanges - 1);
        EXPECT_FALSE(run.agreed());
        for (const int64_t number : {2, 0, 1, 3}) ASSERT_TRUE(run.Wait(number).ok());
        EXPECT_EQ(run.Wait(2).code(), StatusCode::kInternal);
        EXPECT_TRUE(run.agreed());
        ASSERT_TRUE(run.Agree().ok());
        EXPECT_EQ(started, exchanges);
        const auto n = static_cast<float>(size), all = n * (n - 1) / 2;
        EXPECT_THAT(sum, ElementsAre(n + all, 2 * n, 3 * n));
        EXPECT_THAT(idle, ElementsAre(rank, rank));
        EXPECT_THAT(first, ElementsAre(6, 6));
        EXPECT_THAT(part, ElementsAre(all, all));
        EXPECT_TRUE(run.flag_raised());
        EXPECT_EQ(run.shared_sum(), n + all);
        EXPECT_TRUE(run.used(0));
        EXPECT_FALSE(run.used(1));
        ASSERT_TRUE(run.Agree().ok());  // anew
        EXPECT_EQ(started, exchanges + 1);
      }
    });
  }
}

// Neither a step with another load nor a caller that meets for something else ends the engine.
TEST(RunCollectives, ALoadIsRefusedWithTheWords) {
  RunRanks(2, [](Communicator& c) {
    const auto run_of = [&](int64_t word, size_t size) {
      std::vector<float> sum(size, 1);
      RunCollectives run(c, seconds(60));
      run.Compare(std::vector<int64_t>{word}, {}, /*at_once=*/true, static_cast<int64_t>(size));
      Status status = run.Begin();
      if (status.ok()) status = run.Start(0, SumOf(sum));
      if (status.ok()) status = run.Wait(0);
      EXPECT_THAT(sum, ::testing::Each(status.ok() ? 2 : 1));
      EXPECT_EQ(run.differs(), !status.ok());
      return status;
    };
    ASSERT_TRUE(run_of(1, 10).ok());
    ASSERT_TRUE(run_of(1, 10).ok());
    EXPECT_EQ(run_of(c.rank(), c.rank() == 0 ? 10 : 4).code(), StatusCode::kInvalidArgument);
    EXPECT_EQ(run_of(c.rank(), c.rank() == 0 ? 10 : 400).code(), StatusCode::kInvalidArgument);
    ASSERT_TRUE(run_of(1, 10).ok());
    if (c.rank() == 0) {
      EXPECT_EQ(run_of(1, 10).code(), StatusCode::kInvalidArgument);
    } else {
      const int64_t words[1 + RunCollectives::kAgreedWords] = {2};
      EXPECT_EQ((*c.Meet(words, Clock::now() + seconds(60)))[0], 1);
    }
    ASSERT_TRUE(run_of(1, 10).ok());
    ASSERT_TRUE(run_of(1, 10).ok());
  });
}

TEST(RunCollectives, ALaterCollectiveIsNotAgreedByTheMeeting) {
  RunRanks(2, [](Communicator& inner) {
    FaultyCommunicator c(inner);
    std::vector<float> sum = {1}, later = {1};
    const int64_t words[] = {1};
    RunCollectives run(c, seconds(60));
    run.Compare(words, {}, /*at_once=*/true, /*load=*/1);
    ASSERT_TRUE(run.Begin().ok());
    ASSERT_TRUE(run.Start(0, SumOf(sum)).ok());
    ASSERT_TRUE(run.Wait(0).ok());
    ASSERT_TRUE(run.Start(0, SumOf(later)).ok());
    EXPECT_FALSE(run.agreed());
    ASSERT_TRUE(run.Wait(0).ok());
    int started = 0;
    c.AtStarts([&](const Collective&, int) { ++started; });
    ASSERT_TRUE(run.Agree().ok());
    EXPECT_EQ(started, 1);
    EXPECT_TRUE(run.agreed());
    ASSERT_TRUE(run.Start(0, SumOf(later)).ok());  // that of an update
    EXPECT_TRUE(run.agreed());
    ASSERT_TRUE(run.Wait(0).ok());
  });
}

TEST(RunCollectives, AComparisonThatNobodyWaitsForEndsTheCommunicator) {
  const auto ranks = LocalCommunicators(2);
  const int64_t words[] = {1};
  {
    RunCollectives run(*ranks[0], seconds(60));
    run.Compare(words, {}, /*at_once=*/true);
    ASSERT_TRUE(run.Begin().ok());
  }
  EXPECT_EQ(ranks[1]->StartGather(words).status().code(), StatusCode::kRankFailure);
}

TEST(RunCollectives, NothingIsAgreedWithoutAllRanks) {
  const auto ranks = LocalCommunicators(2);
  RunCollectives run(*ranks[0], milliseconds(1));
  run.Share(1);
  EXPECT_EQ(run.Agree().code(), StatusCode::kRankFailure);
  EXPECT_FALSE(run.agreed());
  EXPECT_EQ(run.shared_sum(), 0);
  std::vector<float> data = {1};
  EXPECT_EQ(ranks[1]->Start(SumOf(data)).status().code(), StatusCode::kRankFailure);
}

}  // namespace
}  // namespace caesura::testing
