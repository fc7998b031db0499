// SPDX-License-Identifier: Apache-2.0
// Ranks without a session: their setup, how they come to the same parameters, and their parts of
// state in a file.
#include "training/session/rank_group.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "core/distributed/run_collectives.h"
#include "core/onnx/model_reader.h"
#include "core/providers/cpu_provider.h"
#include "tests/core/distributed/rank_threads.h"
#include "tests/temporary_folder.h"
#include "training/files/checkpoint.h"
#include "training/step/parameter_shard.h"
#include "training/step/parameters.h"
#include "training/step/step_program.h"

namespace caesura::testing {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

constexpr char kNet[] = R"(<ir_version: 10, opset_import: ["": 21]>
net (float[N,2] x) => (float[N,2] y)
<float[2,2] w = {1, 2, 3, 4}> {
  y = MatMul (x, w)
})";

TrainingOptions OptionsOf(Communicator* communicator) {
  TrainingOptions options;
  options.step.loss = Loss::MeanSquaredError("t");
  if (communicator != nullptr) {
    options.ranks.communicator = std::shared_ptr<Communicator>(communicator, [](Communicator*) {});
    options.ranks.timeout = std::chrono::seconds(60);
  }
  return options;
}

// The parts of a session that ranks have to do with. The weights of rank r begin as 1 + r.
struct Parts {
  explicit Parts(TrainingOptions given)
      : options(std::move(given)),
        parameters(ParseModelText(kNet).value(), {"w"}, providers, /*share=*/false),
        ranks(options, SetupOf(options), control, parameters, progress, providers) {
    Model model = parameters.model().Clone();
    EXPECT_TRUE(RunForwardPasses(model, {"w"}, {}).ok());
    EXPECT_TRUE(parameters.MakeCopies(*model.graph).ok());
    program =
        BuildStepProgram(model, {"w"}, options.step, /*with_update=*/true, ranks.setup()).value();
    EXPECT_TRUE(parameters.Share(program).ok());
    if (ranks.setup().has_others()) ranks.DescribeStep(program);
    const auto own = static_cast<float>(1 + ranks.rank());
    EXPECT_TRUE(parameters.Set("w", Tensor::Of<float>({2, 2}, {own, own, own, own})).ok());
  }
  RankSetup SetupOf(const TrainingOptions& of) const {
    return SetUpRanks(of, of.ranks.communicator.get(), providers->providers()).value();
  }
  Status Join() { return ranks.Join(); }
  float Weight() const { return parameters.Get("w")->data<float>()[0]; }

  TrainingOptions options;
  std::shared_ptr<ProviderFallback> providers = TrainingFallback({}, true);
  RunControl control;
  TrainingProgress progress;
  SessionParameters parameters;
  RankGroup ranks;
  StepProgram program;
};

std::string Refusal(const TrainingOptions& options) {
  return SetUpRanks(options, options.ranks.communicator.get(), {MakeCpuProvider()})
      .status()
      .message();
}

TEST(RankGroupTest, TheSetupOfOneRankHasNoOthers) {
  TrainingOptions options = OptionsOf(nullptr);
  options.ranks.shard = 1;
  options.ranks.logical_shards = 3;
  const RankSetup setup = SetUpRanks(options, nullptr, {}).value();
  EXPECT_FALSE(setup.has_others());
  EXPECT_FALSE(setup.divides_state);
  EXPECT_EQ(setup.MicroSteps(1), 3);
  EXPECT_EQ(setup.provider, "");
}

TEST(RankGroupTest, TheSetupIsDerivedAndTheOptionsStay) {
  const auto all = LocalCommunicators(2);
  TrainingOptions options = OptionsOf(all[0].get());
  options.ranks.shard = 2;
  options.step.accumulation_steps = 3;
  const RankSetup setup = SetUpRanks(options, all[0].get(), {MakeCpuProvider()}).value();
  EXPECT_TRUE(setup.has_others());
  EXPECT_TRUE(setup.divides_state);
  EXPECT_TRUE(setup.divides_sums);
  EXPECT_EQ(setup.MicroSteps(3), 3);
  EXPECT_EQ(setup.provider, kCpuProviderName);
  options.ranks.shard = 0;
  options.step.accumulation_steps = 1;
  options.ranks.logical_shards = 8;
  EXPECT_EQ(SetUpRanks(options, all[0].get(), {MakeCpuProvider()})->MicroSteps(1), 4);
}

TEST(RankGroupTest, AnOptionThatDoesNotFitIsNamed) {
  const auto all = LocalCommunicators(2);
  const auto refusal = [&](const std::function<void(TrainingOptions&)>& edit) {
    TrainingOptions options = OptionsOf(all[0].get());
    edit(options);
    return Refusal(options);
  };
  EXPECT_EQ(refusal([](TrainingOptions&) {}), "");
  EXPECT_THAT(refusal([](TrainingOptions& o) { o.ranks.shard = 4; }),
              HasSubstr("shard: expected 0, 1 or 2, got 4"));
  EXPECT_THAT(refusal([](TrainingOptions& o) { o.ranks.bucket_bytes = 0; }),
              HasSubstr("bucket_bytes: expected 1 or more"));
  EXPECT_THAT(refusal([](TrainingOptions& o) { o.ranks.logical_shards = 6; }),
              HasSubstr("expected 2 ranks times a power of two"));
  EXPECT_THAT(refusal([](TrainingOptions& o) { o.failures.action = OnFailure::kRetry; }),
              HasSubstr("on_failure: with other ranks a failed step stops"));
  EXPECT_THAT(refusal([](TrainingOptions& o) {
                o.ranks.logical_shards = 4;
                o.step.accumulation_steps = 2;
              }),
              HasSubstr("logical_shards and accumulation_steps do not go together"));
}

TEST(RankGroupTest, JoinTakesWhatTheFurthestRankHas) {
  RunRanks(3, [](Communicator& c) {
    Parts parts(OptionsOf(&c));
    parts.progress.updates = c.rank() == 1 ? 7 : 5;
    parts.progress.micro_steps = 10 * c.rank();
    ASSERT_TRUE(parts.Join().ok());
    EXPECT_EQ(parts.Weight(), 2);
    EXPECT_EQ(parts.progress.updates, 7);
    EXPECT_EQ(parts.progress.micro_steps, 10);
  });
}

TEST(RankGroupTest, JoinSkipsARankWhoseParametersAreLost) {
  RunRanks(2, [](Communicator& c) {
    Parts parts(OptionsOf(&c));
    if (c.rank() == 0) parts.parameters.set_lost(std::vector<std::string>{"w"});
    ASSERT_TRUE(parts.Join().ok());
    EXPECT_EQ(parts.Weight(), 2);
    parts.parameters.set_lost(std::vector<std::string>{"w"});
    EXPECT_THAT(parts.Join().message(), HasSubstr("no rank has whole parameters"));
  });
}

TEST(RankGroupTest, RanksWithAnotherStepAreRefusedByAll) {
  RunRanks(2, [](Communicator& c) {
    TrainingOptions options = OptionsOf(&c);
    if (c.rank() == 1) options.step.optimizer = Sgd{};
    Parts parts(std::move(options));
    EXPECT_THAT(parts.Join().message(),
                HasSubstr("the optimizer is AdamWUpdate on rank 0, SgdUpdate on rank 1"));
  });
}

TEST(RankGroupTest, OthersMayTakeThePlaceOfLostRanks) {
  auto again = LocalCommunicators(2);
  RunRanks(3, [&](Communicator& c) {
    Parts parts(OptionsOf(&c));
    ASSERT_TRUE(parts.Join().ok());
    if (c.rank() == 2) return;
    parts.control.set_rank_asked(true);
    ASSERT_TRUE(parts.ranks.Replace(std::move(again[static_cast<size_t>(c.rank())])).ok());
    EXPECT_EQ(parts.ranks.setup().ranks, 2);
    EXPECT_FALSE(parts.control.rank_asked());
    parts.progress.updates = c.rank();
    ASSERT_TRUE(parts.Join().ok());
    EXPECT_EQ(parts.progress.updates, 1);
    ASSERT_TRUE(parts.ranks.Replace(nullptr).ok());
    EXPECT_FALSE(parts.ranks.setup().has_others());
    EXPECT_EQ(parts.options.ranks.communicator.get(), &c);  // the user's options stay
  });
}

TEST(RankGroupTest, OthersAreRefusedWhereFailedStepsAreDoneAgain) {
  TrainingOptions options = OptionsOf(nullptr);
  options.failures.action = OnFailure::kRetry;
  Parts parts(std::move(options));
  auto all = LocalCommunicators(2);
  EXPECT_THAT(parts.ranks.Replace(std::move(all[0])).message(),
              HasSubstr("on_failure: with other ranks a failed step stops"));
  EXPECT_FALSE(parts.ranks.setup().has_others());
  EXPECT_EQ(parts.ranks.communicator(), nullptr);
}

TEST(RankGroupTest, AStepTellsAllRanksThatOneWasAskedToSuspend) {
  RunRanks(2, [](Communicator& c) {
    Parts parts(OptionsOf(&c));
    ASSERT_TRUE(parts.Join().ok());
    if (c.rank() == 1) parts.control.set_suspend(true);
    RunOptions run;
    run.seed = 0;
    ASSERT_TRUE(parts.ranks.BeginStep(run, true, {}).ok());
    EXPECT_EQ(*run.seed == 0, c.rank() == 0);  // each rank draws its own numbers
    ASSERT_TRUE(run.collectives->Agree().ok());
    RunResult ended;
    parts.ranks.EndStep(ended);
    EXPECT_EQ(parts.ranks.BeginStep(run, true, {}).code(), StatusCode::kSuspended);
  });
}

TEST(RankGroupTest, AStepThatOthersHaveDoneIsLost) {
  RunRanks(2, [](Communicator& c) {
    Parts parts(OptionsOf(&c));
    ASSERT_TRUE(parts.Join().ok());
    RunOptions run;
    ASSERT_TRUE(parts.ranks.BeginStep(run, true, {}).ok());
    ASSERT_TRUE(run.collectives->Agree().ok());
    run.collectives.reset();
    RunResult ended{.status = c.rank() == 0 ? OutOfMemory("planted") : Status(), .has_begun = true};
    parts.ranks.EndStep(ended);
    EXPECT_EQ(parts.parameters.lost().has_value(), c.rank() == 0);
  });
}

TEST(RankGroupTest, DividedStateGoesThroughOneFile) {
  const TemporaryFolder folder;
  const std::string path = folder.path("c");
  const auto divided = [](Communicator& c) {
    TrainingOptions options = OptionsOf(&c);
    options.ranks.shard = 1;
    return options;
  };
  const auto part = [](const Parts& parts) {
    const ParameterShard& shard = parts.parameters.shards().at(0);
    const ParameterSet& set = parts.parameters.set();
    return set.tensor(set.Find(shard.states[0] + "." + shard.name));
  };
  RunRanks(2, [&](Communicator& c) {
    Parts parts(divided(c));
    ASSERT_TRUE(parts.Join().ok());
    Tensor own = part(parts);
    for (int64_t i = 0; i < own.elements(); ++i)
      own.data<float>()[i] = static_cast<float>(10 * c.rank() + i);
    Checkpoint checkpoint;
    ASSERT_TRUE(parts.parameters.Save(checkpoint, true).ok());
    ASSERT_TRUE(parts.ranks.Save(std::move(checkpoint), path).ok());
    const Checkpoint saved = RestoreCheckpoint(path).value();
    EXPECT_EQ(saved.optimizer_state.at("optimizer.exp_avg.w").shape(), Shape({2, 2}));
    EXPECT_EQ(parts.ranks.Misfits(saved, /*mid_update=*/false), "");
    Parts there(divided(c));
    there.ranks.Restore(saved);
    // All but the padding, which is no part of the file.
    const auto pieces = there.parameters.shards()[0].layout.Pieces(c.rank());
    for (const BucketLayout::Piece& piece : pieces) {
      for (int64_t i = piece.at; i < piece.at + piece.last - piece.first; ++i)
        EXPECT_EQ(part(there).data<float>()[i], part(parts).data<float>()[i]);
    }
    Checkpoint without = saved;
    without.optimizer_state.erase("optimizer.exp_avg.w");
    EXPECT_THAT(parts.ranks.Misfits(without, false), HasSubstr("'optimizer.exp_avg.w' is missing"));
    EXPECT_THAT(parts.ranks.Replace(nullptr).message(), HasSubstr("divided among 2 ranks"));
  });
}

TEST(RankGroupTest, MemoryIsKnownWithoutAStep) {
  const Parts alone(OptionsOf(nullptr));
  const RankMemory memory = alone.ranks.Memory();
  EXPECT_EQ(memory.parameters, 16u);
  EXPECT_EQ(memory.gradients, 16u);
  EXPECT_EQ(memory.optimizer_state, 32u);  // AdamW: two of each
  EXPECT_EQ(memory.total(), 64u);
}

}  // namespace
}  // namespace caesura::testing
