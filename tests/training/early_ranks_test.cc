// SPDX-License-Identifier: Apache-2.0
// Early commit among ranks: updates follow their own bucket's sums, with the bits of late commit
// and less memory; a rank that is lost costs the others the step.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <map>

#include "tests/training/rank_faults.h"
#include "training/session/rank_group.h"

namespace caesura::testing {
namespace {

using ::testing::HasSubstr;
using Edit = std::function<void(TrainingOptions&)>;

void Early(TrainingOptions& options) { options.step.commit = CommitMode::kEagerConsume; }

void ExpectSameBits(
    const RealModel& real, const NamedModel& model, int ranks, int updates,
    const Edit& edit = [](TrainingOptions&) {}) {
  SCOPED_TRACE(std::string(model.name) + " on " + std::to_string(ranks) + " ranks");
  std::vector<double> late_losses, early_losses;
  const Values late = TrainOnRanks(real, model, ranks, updates, &late_losses, edit);
  const Values early =
      TrainOnRanks(real, model, ranks, updates, &early_losses, [&](TrainingOptions& options) {
        edit(options);
        Early(options);
      });
  EXPECT_EQ(early_losses, late_losses);
  EXPECT_TRUE(SameBits(early, late));
}

TEST(EarlyRanks, GiveTheBitsOfLateCommit) {
  for (const NamedModel& model : kModels) {
    RealModel real = model.make();
    real.options.step.clip_norm = 0;
    for (const int ranks : {1, 2, 4}) ExpectSameBits(real, model, ranks, 20);
  }
}

TEST(EarlyRanks, OptionsOfAStep) {
  RealModel accumulated = Mlp(), groups = Mlp(), tokens = Mlp();
  accumulated.options.step.accumulation_steps = 3;
  groups.options.step.groups = {
      {.names = {"b*"}, .learning_rate_scale = 2, .weight_decay = 0.0, .optimizer = {}}};
  tokens.options.step.mean_over = MeanOver::kTokens;
  for (const RealModel* real : {&accumulated, &groups, &tokens})
    ExpectSameBits(*real, kModels[0], 2, 5);
  ExpectSameBits(Mlp(), kModels[0], 2, 5,
                 [](TrainingOptions& o) { o.step.exchange_dtype = DType::kBFloat16; });
  ExpectSameBits(Mlp(), kModels[0], 2, 5, [](TrainingOptions& o) { o.ranks.bucket_bytes = 1; });
  ExpectSameBits(Mlp(), kModels[0], 2, 5,
                 [](TrainingOptions& o) { o.ranks.bucket_bytes = 1 << 30; });
}

// Eight products of 256 KiB of weights each: a bucket each.
RealModel DeepMlp() {
  std::string inputs, nodes, x = "x";
  for (const char layer : std::string("01234567")) {
    const std::string i(1, layer);
    inputs += ", float[256,256] w" + i;
    nodes += "h" + i + " = MatMul (" + x + ", w" + i + ") r" + i + " = Relu (h" + i + ") ";
    x = "r" + i;
  }
  RealModel real =
      MakeRealModel("net (float[batch,256] x" + inputs + ") => (float[batch,256] scores) {" +
                        nodes + "scores = Identity (r7) }",
                    1);
  real.options.step.loss = Loss::CrossEntropy("labels");
  real.options.step.optimizer = AdamW{};
  return real;
}

NamedValues DeepBatch() {
  return RandomBatch(1, "x", Shape{1, 256}, false, "labels", Shape{1}, 256);
}

void WeightBuckets(TrainingOptions& options) { options.ranks.bucket_bytes = 256 * 256 * 4; }

// Gradients take three buckets, and the one that is about to go into a bucket; late commit has all
// eight.
TEST(EarlyRanks, TakeThreeBucketsOfGradients) {
  const RealModel real = DeepMlp();
  constexpr size_t kWeight = 256 * 256 * 4;
  RunRanks(2, [&](Communicator& c) {
    const auto late = RankSession(real, c, WeightBuckets);
    const auto early = RankSession(real, c, [](TrainingOptions& options) {
      WeightBuckets(options);
      Early(options);
    });
    const size_t late_arena = late->runs().Plan(DeepBatch()).value()->arena_bytes();
    const size_t early_arena = early->runs().Plan(DeepBatch()).value()->arena_bytes();
    EXPECT_GE(late_arena, 8 * kWeight);
    EXPECT_LE(early_arena, 4 * kWeight + 65536);
    EXPECT_EQ(late->Memory().gradients, 8 * kWeight);
    EXPECT_EQ(early->Memory().gradients, 7 * kWeight);  // buckets may be twice as large
    if (c.rank() == 0)
      std::printf("arena: late %zu, early %zu bytes; a bucket %zu\n", late_arena, early_arena,
                  kWeight);
  });
}

// In the order of the plan: two collectives are under way while a third bucket is filled, no bucket
// is copied, and the updates of the first bucket come before the last one starts.
TEST(EarlyRanks, ABucketIsUpdatedWhileOthersAreExchanged) {
  const RealModel real = DeepMlp();
  RunRanks(2, [&](Communicator& c) {
    const auto session = RankSession(real, c, [](TrainingOptions& options) {
      WeightBuckets(options);
      Early(options);
    });
    const auto plan = session->runs().Plan(DeepBatch()).value();
    int under_way = 0, most = 0, started = 0, copies = 0, updates_before_last_start = 0,
        updates = 0;
    int last_update = -1, agreed = -1, last_wait = -1;
    for (int s = 0; s < static_cast<int>(plan->steps().size()); ++s) {
      const PlanStep& step = plan->steps()[s];
      if (step.node->Is("CollectiveStart", kCaesuraDomain)) {
        most = std::max(most, ++under_way);
        ++started;
        updates_before_last_start = updates;
        const uint32_t* ids = plan->arguments().data() + step.first_argument;
        for (uint32_t i = 0; i < step.input_count; ++i)
          copies += ids[i] != ids[step.input_count + i];
      } else if (step.node->Is("CollectiveWait", kCaesuraDomain)) {
        --under_way;
        last_wait = s;
      } else if (step.node->Is("AdamWUpdate", kCaesuraDomain)) {
        ++updates;
        last_update = s;
      } else if (step.node->Is("AgreeToCommit", kCaesuraDomain)) {
        agreed = s;
      }
    }
    EXPECT_EQ(under_way, 0);
    EXPECT_EQ(most, 2);
    EXPECT_GE(started, 8);
    EXPECT_LE(copies, 1);  // the loss, which is read as it is, too
    EXPECT_GE(updates_before_last_start, 5);
    EXPECT_EQ(updates, 8);
    EXPECT_GT(agreed, last_wait);
    EXPECT_LT(agreed, last_update);
  });
}

// --- a rank that is lost ---

void SweepEarly(bool undo, int every, std::chrono::milliseconds patience,
                const FaultyCommunicator::Fault& fault) {
  for (const int accumulation : {1, 3}) {
    SCOPED_TRACE(std::to_string(accumulation) + " micro-steps");
    RankFaultSweep sweep(accumulation, [&](TrainingOptions& options) {
      Early(options);
      options.undo = undo;
      options.ranks.bucket_bytes = 300;
    });
    ASSERT_GE(sweep.events(0), 15);
    for (int event = 0; event < sweep.events(0); event += every) {
      sweep.Break(event % kFaultRanks, event, fault, patience, !undo);
      if (::testing::Test::HasFailure()) return;
    }
    EXPECT_GT(sweep.undone(), 0);
    EXPECT_GT(sweep.gone_on(), 0);
    if (!undo && every == 1) {
      EXPECT_GT(sweep.refused(), 0);
    }
    std::printf("%d steps done, %d undone, %d lost; %d groups went on, %d restored\n", sweep.done(),
                sweep.undone(), sweep.lost(), sweep.gone_on(), sweep.refused());
  }
}

TEST(EarlyRanks, ACollectiveThatFailsLosesTheStep) {
  const auto fault = [](const Collective&) { return RankFailure("planted: the link is down"); };
  SweepEarly(/*undo=*/false, 1, std::chrono::milliseconds(0), fault);
  SweepEarly(/*undo=*/true, 1, std::chrono::milliseconds(0), fault);
}

TEST(EarlyRanks, ARankThatIsLateLosesTheStep) {
  constexpr auto kPatience = std::chrono::milliseconds(200);
  SweepEarly(/*undo=*/false, Every(7), kPatience, [&](const Collective&) {
    std::this_thread::sleep_for(3 * kPatience);
    return Status();
  });
}

// One sentence says what is lost and the way back, at the step that fails and at all later ones.
TEST(EarlyRanks, ALostStepSaysTheWayBack) {
  const RealModel real = Mlp();
  RunRanks(2, [&](Communicator& inner) {
    FaultyCommunicator c(inner);
    const auto session = RankSession(real, c, Early);
    c.At(-1);
    ASSERT_TRUE(session->Step(FaultBatch(0, c)).ok());
    const int events = c.events();
    c.At(c.rank() == 1 ? events / 2 : -1, [](const Collective&) { return RankFailure("planted"); });
    const std::string back = "Restore the last checkpoint on all ranks";
    std::string message;
    for (int s = 1; s < 4; ++s) {
      const Status status = session->Step(FaultBatch(s, c)).status();
      ASSERT_FALSE(status.ok());
      if (session->parameters().lost().value_or(std::vector<std::string>()).empty())
        return;  // it had not written yet
      EXPECT_THAT(status.message(), HasSubstr(back));
      if (s == 1) {
        EXPECT_THAT(status.message(), HasSubstr("parameters may be half updated ('"));
      }
    }
    const TemporaryFolder folder;
    EXPECT_THAT(session->Save(folder.path("c")).message(), HasSubstr("nothing worth saving"));
  });
}

TEST(EarlyRanks, OptionsThatDoNotFitAreRefused) {
  const auto refused = [](const Edit& edit) {
    auto ranks = LocalCommunicators(2);
    RealModel real = Mlp();
    real.options.ranks.communicator = std::move(ranks[0]);
    Early(real.options);
    real.options.ranks.join = false;  // there is one rank
    edit(real.options);
    return TrainingSession::Create(std::move(real.model), real.options).status().message();
  };
  for (const Edit& edit : {Edit([](TrainingOptions& o) { o.step.clip_norm = 1; }),
                           Edit([](TrainingOptions& o) { o.step.precision = DType::kFloat16; }),
                           Edit([](TrainingOptions& o) { o.step.refuse_nonfinite = true; })}) {
    EXPECT_THAT(refused(edit), HasSubstr("commit eager-consume and"));
  }
  for (const Edit& edit : {Edit([](TrainingOptions& o) { o.ranks.shard = 1; }),
                           Edit([](TrainingOptions& o) { o.ranks.logical_shards = 2; }),
                           Edit([](TrainingOptions& o) { o.step.rank_parts = {"w0"}; })}) {
    EXPECT_THAT(refused(edit), HasSubstr("after all gradients"));
  }
}

}  // namespace
}  // namespace caesura::testing
