// SPDX-License-Identifier: Apache-2.0
// A rank is lost, and the others go on.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "core/distributed/communicator.h"
#include "tests/core/distributed/faulty_communicator.h"
#include "tests/core/execute/faulty_provider.h"
#include "tests/training/rank_session.h"

namespace caesura::testing {
namespace {

using ::testing::HasSubstr;

// Three ranks; the last one fails at its k-th kernel in the second step. The others regroup, do the
// step again where nobody has done it, and one more. Returns what they end with, and how many
// updates they have done.
std::pair<Values, int64_t> GoOnWithoutTheLast(const RealModel& real, int k) {
  auto survivors = LocalCommunicators(2);
  std::vector<Values> ends(2);
  std::vector<int64_t> updates(2);
  RunRanks(3, [&](Communicator& c) {
    auto provider = std::make_shared<FailingProvider>(TrainingCpu());
    provider->FailAt(-1);
    const auto session =
        RankSession(real, c, [&](TrainingOptions& options) { options.providers = {provider}; });
    ASSERT_TRUE(session->Step(PartOf(kModels[0].batch(1), c)).ok());
    const NamedValues batch = kModels[0].batch(2);
    ASSERT_TRUE(session->runs().Plan(PartOf(batch, c)).ok());
    provider->FailAt(c.rank() == 2 ? k : -1);
    const auto loss = session->Step(PartOf(batch, c));
    if (c.rank() == 2) return;
    Communicator& fewer = *survivors[c.rank()];
    const Status regrouped =
        session->Regroup(std::shared_ptr<Communicator>(&fewer, [](Communicator*) {}));
    ASSERT_TRUE(regrouped.ok()) << regrouped.ToString();
    if (session->progress().updates == 1) {
      ASSERT_TRUE(session->Step(PartOf(batch, fewer)).ok());
    }
    updates[c.rank()] = loss.ok() ? 2 : 1;
    ASSERT_TRUE(session->Step(PartOf(kModels[0].batch(3), fewer)).ok());
    EXPECT_EQ(session->progress().updates, 3);
    ends[c.rank()] = ParametersOf(*session);
  });
  EXPECT_TRUE(SameBits(ends[0], ends[1]));
  return {ends[0], std::max(updates[0], updates[1])};
}

TEST(Regroup, SurvivorsGoOnAsIfTheRankHadLeftAtThatStep) {
  RealModel real = Mlp();
  real.options.step.optimizer = AdamW{.learning_rate = 2e-3};
  const auto without = GoOnWithoutTheLast(real, 0);  // lost before the step
  int with = 0;
  Values after;
  for (int k = 1; k < 24; ++k) {
    SCOPED_TRACE("call " + std::to_string(k));
    const auto [parameters, done] = GoOnWithoutTheLast(real, k);
    if (done == 1) {
      EXPECT_TRUE(SameBits(parameters, without.first));
    } else if (with++ == 0) {
      after = parameters;  // lost after the agreement: the step counts with all three
    } else {
      EXPECT_TRUE(SameBits(parameters, after));
    }
  }
  EXPECT_FALSE(SameBits(without.first, after));
}

TEST(Regroup, ARankThatIsBehindTakesWhatOthersHaveDone) {
  const RealModel real = Mlp();
  auto again = LocalCommunicators(2);
  std::vector<Values> ends(2);
  RunRanks(2, [&](Communicator& c) {
    const auto session = RankSession(real, c);
    ASSERT_TRUE(session->Step(PartOf(kModels[0].batch(1), c)).ok());
    // By itself rank 1 goes on by one update.
    if (c.rank() == 1) {
      ASSERT_TRUE(session->Regroup(nullptr).ok());
      ASSERT_TRUE(session->Step(kModels[0].batch(2)).ok());
    }
    Communicator& next = *again[c.rank()];
    ASSERT_TRUE(session->Regroup(std::shared_ptr<Communicator>(&next, [](Communicator*) {})).ok());
    EXPECT_EQ(session->progress().updates, 2);
    ASSERT_TRUE(session->Step(PartOf(kModels[0].batch(3), c)).ok());
    ends[c.rank()] = ParametersOf(*session);
  });
  EXPECT_TRUE(SameBits(ends[0], ends[1]));
}

// A second rank is lost while parameters are given: the one that gives them still has them.
TEST(Regroup, ARankThatIsLostMeanwhileTakesNoParametersAlong) {
  const RealModel real = Mlp();
  auto again = LocalCommunicators(2);
  RunRanks(2, [&](Communicator& c) {
    const auto session = RankSession(real, c);
    ASSERT_TRUE(session->Step(PartOf(kModels[0].batch(1), c)).ok());
    FaultyCommunicator next(*again[c.rank()]);
    const auto fault = [](const Collective& collective) {
      const bool gives = collective.kind == Collective::Kind::kBroadcast;
      return gives ? RankFailure("planted") : Status();
    };
    next.At(c.rank() == 1 ? 5 : -1, fault);
    const Values before = ParametersOf(*session);
    const Status status =
        session->Regroup(std::shared_ptr<Communicator>(&next, [](Communicator*) {}));
    EXPECT_EQ(status.code(), StatusCode::kRankFailure) << status.ToString();
    EXPECT_EQ(session->parameters().lost().has_value(), c.rank() == 1);
    EXPECT_EQ(session->Regroup(nullptr).ok(), c.rank() == 0);
    if (c.rank() == 0) {
      EXPECT_TRUE(SameBits(ParametersOf(*session), before));
      EXPECT_TRUE(session->Step(kModels[0].batch(2)).ok());
    }
  });
}

// The other one is told at once, and both go on once no step waits.
TEST(Regroup, BesideARankWhoseStepWaitsIsRefused) {
  const RealModel real = Mlp();
  auto again = LocalCommunicators(2);
  RunRanks(2, [&](Communicator& c) {
    const auto session = RankSession(real, c);
    ASSERT_TRUE(session->Regroup(nullptr).ok());
    if (c.rank() == 1) {
      session->control().SuspendAt(3);
      EXPECT_EQ(session->Step(kModels[0].batch(1)).status().code(), StatusCode::kSuspended);
    }
    const auto regroup = [&] {
      return session->Regroup(
          std::shared_ptr<Communicator>(again[c.rank()].get(), [](Communicator*) {}));
    };
    const Status refused = regroup();
    EXPECT_EQ(refused.code(), StatusCode::kInvalidArgument) << refused.ToString();
    EXPECT_THAT(refused.message(), HasSubstr("a step waits"));
    EXPECT_EQ(refused.message().find("rank 1 does not join") != std::string::npos, c.rank() == 0);
    if (c.rank() == 1) {
      ASSERT_TRUE(session->ResumeStep().ok());
    }
    EXPECT_TRUE(regroup().ok());
    EXPECT_EQ(session->progress().updates, 1);
    EXPECT_TRUE(session->Step(PartOf(kModels[0].batch(2), c)).ok());
  });
}

}  // namespace
}  // namespace caesura::testing
