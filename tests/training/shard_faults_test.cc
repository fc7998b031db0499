// SPDX-License-Identifier: Apache-2.0
// Divided optimizer state, and one of three ranks that breaks before or after any of its
// collectives: no rank ends with a mixture. CAESURA_LONG=1: late at every event, otherwise at some.
#include <gtest/gtest.h>

#include <cmath>
#include <ostream>

#include "tests/training/rank_faults.h"
#include "training/step/parameter_shard.h"

namespace caesura::testing {
namespace {

struct Way {
  int shard, accumulation;
  bool undo;
};

void PrintTo(const Way& way, std::ostream* out) {
  *out << "shard" << way.shard << "_steps" << way.accumulation << (way.undo ? "_undo" : "");
}

class ShardFaults : public ::testing::TestWithParam<Way> {
 protected:
  RankFaultSweep MakeSweep() {
    return RankFaultSweep(GetParam().accumulation, [way = GetParam()](TrainingOptions& options) {
      options.ranks.shard = way.shard;
      options.undo = way.undo;
    });
  }

  // Breaks each rank in turn at one event in `every`.
  void Run(RankFaultSweep& sweep, int every, const FaultyCommunicator::Fault& fault,
           std::chrono::milliseconds patience) {
    ASSERT_GE(sweep.events(0), 30);
    for (int event = 0; event < sweep.events(0); event += every) {
      sweep.Break(event % kFaultRanks, event, fault, patience, !GetParam().undo);
      if (HasFatalFailure() || HasNonfatalFailure()) return;
    }
    sweep.Break(1, sweep.events(1) - 1, fault, patience, !GetParam().undo);
    EXPECT_GT(sweep.undone(), 0);
    EXPECT_GT(sweep.done(), 0);
    EXPECT_GT(sweep.gone_on(), 0);
    std::printf("%d steps done, %d undone, %d lost; %d groups went on, %d restored\n", sweep.done(),
                sweep.undone(), sweep.lost(), sweep.gone_on(), sweep.refused());
  }
};

INSTANTIATE_TEST_SUITE_P(Ways, ShardFaults,
                         ::testing::Values(Way{1, 1, false}, Way{1, 1, true}, Way{1, 3, false},
                                           Way{2, 1, false}, Way{2, 3, false}, Way{2, 3, true}),
                         ::testing::PrintToStringParamName());

TEST_P(ShardFaults, ACollectiveThatFails) {
  RankFaultSweep sweep = MakeSweep();
  Run(
      sweep, 1, [](const Collective&) { return RankFailure("planted: the link is down"); },
      std::chrono::milliseconds(0));
  if (!GetParam().undo) {
    EXPECT_GT(sweep.lost(), 0);
    EXPECT_GT(sweep.refused(), 0);
  }
}

TEST_P(ShardFaults, ARankThatIsLate) {
  constexpr auto kPatience = std::chrono::milliseconds(200);
  RankFaultSweep sweep = MakeSweep();
  Run(
      sweep, Every(11),
      [&](const Collective&) {
        std::this_thread::sleep_for(3 * kPatience);
        return Status();
      },
      kPatience);
}

// --- a NaN in the memory that a rank exchanges ---

// The number of collectives of floating-point numbers that one rank starts in a step, if they are
// of a kind that `counts`. The one of number `spoilt` has a NaN.
class SpoiltExchange {
 public:
  SpoiltExchange(FaultyCommunicator& c, int spoilt, bool also_all_reduce) {
    c.AtStarts([this, spoilt, also_all_reduce](const Collective& collective, int) {
      const bool counts = collective.kind == Collective::Kind::kReduceScatter ||
                          (also_all_reduce && collective.kind == Collective::Kind::kAllReduce);
      if (!counts || seen_++ != spoilt) return;
      void* data = const_cast<void*>(collective.input);
      if (collective.dtype == DType::kFloat32) *static_cast<float*>(data) = NAN;
      if (collective.dtype == DType::kFloat64) *static_cast<double*>(data) = NAN;
    });
  }
  int seen() const { return seen_; }

 private:
  int seen_ = 0;
};

// All ranks refuse the step, or skip the update where the loss is scaled; the same step is then
// done, as if nothing had been.
void SpoilEachExchange(int shard, int accumulation, bool skips) {
  const auto edit = [&](TrainingOptions& options) {
    options.ranks.shard = shard;
    options.step.optimizer = AdamW{.learning_rate = 2e-3};
    options.step.accumulation_steps = accumulation;
    options.step.refuse_nonfinite = !skips;
    if (skips) options.step.precision = DType::kFloat16;
  };
  const RealModel real = Mlp();
  int exchanges = 1;
  for (int e = 0; e < exchanges; ++e) {
    SCOPED_TRACE("exchange " + std::to_string(e));
    std::vector<int> seen(kFaultRanks);
    RunRanks(kFaultRanks, [&](Communicator& inner) {
      FaultyCommunicator c(inner);
      const auto session = RankSession(real, c, edit);
      const Values before = ParametersOf(*session);
      const auto parts_of = [&] {
        Values out;
        for (const ParameterShard& part : session->parameters().shards())
          out.push_back(
              session->parameters().Get(part.states[0] + "." + part.name)->Clone().value());
        return out;
      };
      const Values state = parts_of();
      SpoiltExchange spoilt(c, c.rank() == e % kFaultRanks ? e : -1, !skips);
      Status status;
      for (int s = 0; s < accumulation; ++s) {
        const auto loss = session->Step(FaultBatch(s, c));
        if (!loss.ok()) status = loss.status();
      }
      seen[c.rank()] = spoilt.seen();
      EXPECT_EQ(status.ok(), skips) << status.ToString();
      if (!skips) {
        EXPECT_THAT(status.message(), ::testing::HasSubstr("the step was refused"));
      }
      EXPECT_EQ(session->progress().updates, 0);
      EXPECT_TRUE(SameBits(ParametersOf(*session), before));
      EXPECT_TRUE(SameBits(parts_of(), state));
      c.AtStarts({});
      for (int s = 0; s < accumulation; ++s) {
        const auto loss = session->Step(FaultBatch(s, c));
        ASSERT_TRUE(loss.ok()) << loss.status().ToString();
      }
      EXPECT_EQ(session->progress().updates, 1);
    });
    exchanges = seen[0];
    if (::testing::Test::HasFailure()) return;
  }
  EXPECT_GT(exchanges, 3);
}

TEST(SpoiltShards, ANaNIsRefusedByAllRanks) {
  SpoilEachExchange(1, 1, false);
  SpoilEachExchange(2, 1, false);
}

TEST(SpoiltShards, AnUpdateWithANaNIsSkippedByAllRanks) {
  SpoilEachExchange(1, 3, true);
  SpoilEachExchange(2, 3, true);
}

}  // namespace
}  // namespace caesura::testing
