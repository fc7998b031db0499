// SPDX-License-Identifier: Apache-2.0
// Sweeps in which one rank breaks at each event of its collectives: what becomes of all ranks.
#ifndef CAESURA_TESTS_TRAINING_RANK_FAULTS_H_
#define CAESURA_TESTS_TRAINING_RANK_FAULTS_H_

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <functional>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "tests/core/distributed/faulty_communicator.h"
#include "tests/temporary_folder.h"
#include "tests/training/rank_session.h"
#include "training/step/parameter_shard.h"

namespace caesura::testing {

inline constexpr int kFaultRanks = 3;
inline constexpr auto kWatchdog = std::chrono::seconds(60);

// Copies of all that a rank has: parameters, statistics, state and sums of gradients, or its parts.
inline Values StateOfRank(const TrainingSession& session) {
  std::vector<std::string> names = session.parameters().Names(), all = names;
  for (const ParameterShard& shard : session.parameters().shards()) names.push_back(shard.name);
  for (const std::string& name : names) {
    for (const char* state : {"optimizer.exp_avg.", "optimizer.exp_avg_sq.", "accumulator."})
      all.push_back(state + name);
  }
  Values out;
  for (const std::string& name : all) {
    const Result<Tensor> tensor = session.parameters().Get(name);
    if (tensor.ok()) out.push_back(tensor->Clone().value());
  }
  return out;
}

// The feeds of micro-step `s` of a run, for one rank.
inline NamedValues FaultBatch(int s, const Communicator& c) {
  return PartOf(kModels[0].batch(static_cast<uint32_t>(100 + s)), c);
}

inline std::shared_ptr<Communicator> Borrowed(Communicator& communicator) {
  return std::shared_ptr<Communicator>(&communicator, [](Communicator*) {});
}

// A sweep over the second update of an MLP on local ranks.
class RankFaultSweep {
 public:
  using Edit = std::function<void(TrainingOptions&)>;

  // `accumulation`: micro-steps of an update.
  RankFaultSweep(int accumulation, Edit edit) : edit_(std::move(edit)), real_(Mlp()) {
    real_.options.step.accumulation_steps = accumulation;
    real_.options.step.optimizer = AdamW{.learning_rate = 2e-3};
    undisturbed_.resize(kFaultRanks);
    later_.resize(kFaultRanks);
    events_.resize(kFaultRanks);
    RunRanks(kFaultRanks, [&](Communicator& inner) {
      FaultyCommunicator c(inner);
      const auto session = RankSession(real_, c, edit_);
      Update(*session, c, 0);
      c.At(-1);
      Update(*session, c, 1);
      events_[c.rank()] = c.events();
      undisturbed_[c.rank()] = StateOfRank(*session);
      Update(*session, c, 2);
      later_[c.rank()] = StateOfRank(*session);
    });
  }

  int events(int rank) const { return events_[rank]; }
  const RealModel& model() const { return real_; }

  // Rank `victim` breaks at `event`. With `may_be_lost` a rank may say that its step is lost.
  void Break(int victim, int event, const FaultyCommunicator::Fault& fault,
             std::chrono::milliseconds patience, bool may_be_lost) {
    SCOPED_TRACE("rank " + std::to_string(victim) + ", event " + std::to_string(event));
    const TemporaryFolder folder;
    const std::string path = folder.path("last");
    auto again = LocalCommunicators(kFaultRanks);
    std::vector<Status> regrouped(kFaultRanks);
    RunRanks(kFaultRanks, [&](Communicator& inner) {
      FaultyCommunicator c(inner);
      const auto session = RankSession(real_, c, edit_);
      Update(*session, c, 0);
      if (!session->parameters().shards().empty() || c.rank() == 0) {
        ASSERT_TRUE(session->Save(path).ok());
      }
      c.Limit(patience);
      c.At(c.rank() == victim ? event : -1, fault);
      const auto began = Clock::now();
      CheckOutcome(*session, c, victim, may_be_lost);
      EXPECT_LT(Clock::now() - began, kWatchdog);
      regrouped[c.rank()] = session->Regroup(Borrowed(*again[c.rank()]));
      if (!regrouped[c.rank()].ok()) {
        ASSERT_TRUE(session->Restore(path).ok());
      }
      if (session->progress().updates == 1) Update(*session, c, 1);
      Update(*session, c, 2);
      EXPECT_TRUE(SameBits(StateOfRank(*session), later_[c.rank()])) << "rank " << c.rank();
    });
    for (const Status& status : regrouped) {
      EXPECT_EQ(status.ok(), regrouped[0].ok());
      if (status.ok()) continue;
      EXPECT_THAT(status.message(), ::testing::HasSubstr("Restore"));
    }
    gone_on_ += regrouped[0].ok();
    refused_ += !regrouped[0].ok();
    RunRanks(kFaultRanks, [&](Communicator& c) {
      const auto session = RankSession(real_, c, edit_);
      const auto restored = session->Restore(path);
      ASSERT_TRUE(restored.ok()) << restored.status().ToString();
      Update(*session, c, 1);
      Update(*session, c, 2);
      EXPECT_TRUE(SameBits(StateOfRank(*session), later_[c.rank()])) << "rank " << c.rank();
    });
  }

  // Counts of the sweep so far: ranks whose step was done, undone and lost; and groups that went
  // on, and that had to restore.
  int done() const { return done_; }
  int undone() const { return undone_; }
  int lost() const { return lost_; }
  int gone_on() const { return gone_on_; }
  int refused() const { return refused_; }

 private:
  int steps() const { return real_.options.step.accumulation_steps; }

  void Update(TrainingSession& session, const Communicator& c, int update) {
    for (int s = update * steps(); s < (update + 1) * steps(); ++s) {
      const Result<double> loss = session.Step(FaultBatch(s, c));
      ASSERT_TRUE(loss.ok()) << loss.status().ToString();
    }
  }

  // The second update: it is done on this rank, or this rank is as it was, or says that it is lost.
  void CheckOutcome(TrainingSession& session, const Communicator& c, int victim, bool may_be_lost) {
    Values before = StateOfRank(session);
    Result<double> loss = 0;
    for (int s = steps(); s < 2 * steps() && loss.ok(); ++s) {
      before = StateOfRank(session);
      loss = session.Step(FaultBatch(s, c));
    }
    if (loss.ok()) {
      ++done_;
      EXPECT_TRUE(SameBits(StateOfRank(session), undisturbed_[c.rank()])) << "rank " << c.rank();
      return;
    }
    if (c.rank() != victim) {
      EXPECT_EQ(loss.status().code(), StatusCode::kRankFailure) << loss.status().ToString();
    }
    if (loss.status().message().find("the step is lost") == std::string::npos) {
      ++undone_;
      EXPECT_TRUE(SameBits(StateOfRank(session), before)) << loss.status().ToString();
      return;
    }
    ++lost_;
    EXPECT_TRUE(may_be_lost) << loss.status().ToString();
    EXPECT_THAT(session.Step(FaultBatch(2, c)).status().message(), ::testing::HasSubstr("Restore"));
  }

  const Edit edit_;
  RealModel real_;
  std::vector<Values> undisturbed_, later_;  // after two and three updates, by rank
  std::vector<int> events_;                  // of the second update, by rank
  std::atomic<int> done_ = 0, undone_ = 0, lost_ = 0, gone_on_ = 0, refused_ = 0;
};

}  // namespace caesura::testing

#endif  // CAESURA_TESTS_TRAINING_RANK_FAULTS_H_
