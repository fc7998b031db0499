// SPDX-License-Identifier: Apache-2.0
// The words by which ranks agree arrive damaged on one of three ranks: an error on it, and no rank
// ends with a mixture.
#include <gtest/gtest.h>

#include "tests/training/rank_faults.h"

namespace caesura::testing {
namespace {

// A fault that changes one bit of the words that another rank sent; other collectives are left as
// they are. Counts what it has changed.
FaultyCommunicator::Fault DamageWords(int victim, int bit, std::atomic<int>* damaged) {
  return [=](const Collective& collective) {
    const bool is_words = collective.kind == Collective::Kind::kAllGather &&
                          collective.dtype == DType::kInt64 && collective.count < 32;
    if (!is_words) return Status();
    const int other = (victim + 1) % kFaultRanks;
    auto* word = static_cast<uint64_t*>(collective.output) + other * collective.count;
    word[bit / 64 % collective.count] ^= uint64_t{1} << bit % 64;
    ++*damaged;
    return Status();
  };
}

struct Damage {
  const char* name;
  int shard;
  CommitMode commit;
};

void PrintTo(const Damage& way, std::ostream* out) { *out << way.name; }

class DamagedWords : public ::testing::TestWithParam<Damage> {};

INSTANTIATE_TEST_SUITE_P(Ways, DamagedWords,
                         ::testing::Values(Damage{"late", 0, CommitMode::kLate},
                                           Damage{"early", 0, CommitMode::kEagerConsume},
                                           Damage{"shard1", 1, CommitMode::kLate},
                                           Damage{"shard2", 2, CommitMode::kLate}),
                         ::testing::PrintToStringParamName());

TEST_P(DamagedWords, InAStep) {
  RankFaultSweep sweep(/*accumulation=*/1, [](TrainingOptions& options) {
    options.ranks.shard = GetParam().shard;
    options.step.commit = GetParam().commit;
    options.undo = true;
  });
  std::atomic<int> damaged = 0;
  for (int event = 0; event < sweep.events(0); ++event) {
    const int victim = event % kFaultRanks;
    sweep.Break(victim, event, DamageWords(victim, 37 * event, &damaged),
                std::chrono::milliseconds(0), /*may_be_lost=*/false);
    if (HasFailure()) return;
  }
  EXPECT_GT(damaged, 0);
  EXPECT_GT(sweep.undone(), 0);  // some were damaged after they had arrived
  std::printf("%d damaged; %d steps done, %d undone\n", damaged.load(), sweep.done(),
              sweep.undone());
}

// Before the first step ranks agree on the program and on whose parameters they take.
TEST(DamagedWordsOfCreation, AreRefused) {
  const RealModel real = Mlp();
  std::atomic<int> damaged = 0;
  constexpr int kArrived = 2;  // after a start and a wait
  for (int bit = 0; bit < 256; bit += 17) {
    std::vector<Status> ends(kFaultRanks);
    RunRanks(kFaultRanks, [&](Communicator& inner) {
      FaultyCommunicator c(inner);
      c.At(c.rank() == 1 ? kArrived : -1, DamageWords(1, bit, &damaged));
      RealModel copy = real.Clone();
      copy.options.ranks.communicator = Borrowed(c);
      ends[c.rank()] = TrainingSession::Create(std::move(copy.model), copy.options).status();
    });
    EXPECT_EQ(ends[1].code(), StatusCode::kRankFailure) << ends[1].ToString();
  }
  EXPECT_EQ(damaged, 16);
}

}  // namespace
}  // namespace caesura::testing
