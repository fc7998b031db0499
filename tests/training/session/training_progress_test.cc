// SPDX-License-Identifier: Apache-2.0
// Counters, rates and sums of losses, step by step and through a checkpoint.
#include "training/session/training_progress.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>

#include "training/files/checkpoint.h"

namespace caesura {
namespace {

using ::testing::HasSubstr;

TEST(TrainingProgressTest, AnUpdateTakesTheMeanLossOfItsMicroSteps) {
  TrainingProgress progress;
  progress.micro_steps_to_update = 2;
  EXPECT_FALSE(progress.update_is_due());
  ASSERT_TRUE(progress.EndMicroStep(/*is_update=*/false, 3, /*skipped=*/false).ok());
  EXPECT_EQ(progress.accumulated(), 1);
  EXPECT_TRUE(progress.update_is_due());
  ASSERT_TRUE(progress.EndMicroStep(true, 1, false).ok());
  EXPECT_EQ(progress.updates, 1);
  EXPECT_EQ(progress.update_loss, 2);
  EXPECT_EQ(progress.accumulated(), 0);
  progress.loss_is_mean = true;
  ASSERT_TRUE(progress.EndMicroStep(false, 3, false).ok());
  ASSERT_TRUE(progress.EndMicroStep(true, 1, false).ok());
  EXPECT_EQ(progress.update_loss, 1);
}

TEST(TrainingProgressTest, TheCallerMayDecideWhenToUpdate) {
  TrainingProgress progress;
  progress.micro_steps_to_update = 0;
  for (int i = 0; i < 3; ++i) ASSERT_TRUE(progress.EndMicroStep(false, 1, false).ok());
  EXPECT_EQ(progress.accumulated(), 3);
  EXPECT_TRUE(progress.update_is_due());
  ASSERT_TRUE(progress.EndMicroStep(true, 1, false).ok());
  EXPECT_EQ(progress.accumulated(), 0);
}

TEST(TrainingProgressTest, TheRateFollowsTheSchedule) {
  TrainingProgress progress;
  progress.base_rate = 0.5;
  progress.schedule = {.decay = PolynomialDecay{.steps = 4}};
  EXPECT_EQ(progress.learning_rate(), 0.5);
  ASSERT_TRUE(progress.EndMicroStep(true, 1, false).ok());
  EXPECT_EQ(progress.learning_rate(), 0.375);
}

TEST(TrainingProgressTest, ASkippedUpdateLowersTheScaleUntilNoneIsSmallEnough) {
  TrainingProgress progress;
  EXPECT_EQ(progress.loss_scale(), 1);
  progress.scales_loss = true;
  progress.scaler = GradScaler({.initial_scale = 1});
  Status status;
  int steps = 0;
  for (; status.ok() && steps < 100; ++steps) status = progress.EndMicroStep(true, 1, true);
  EXPECT_EQ(steps, 25);  // 2^-25 is the first below the smallest one, 2^-24
  EXPECT_THAT(status.message(), HasSubstr("gradients are not finite"));
  EXPECT_EQ(progress.updates, 0);
  EXPECT_EQ(progress.micro_steps, 25);
  EXPECT_EQ(progress.loss_scale(), std::ldexp(1.0, -25));
}

TEST(TrainingProgressTest, ACheckpointHasAllThatTheRunGoesOnBy) {
  TrainingProgress here;
  here.micro_steps_to_update = 0;
  here.scales_loss = true;
  here.base_rate = 0.25;
  here.seed = ~uint64_t{0};
  ASSERT_TRUE(here.EndMicroStep(true, 1, false).ok());
  ASSERT_TRUE(here.EndMicroStep(false, 7, false).ok());
  Checkpoint checkpoint;
  here.Save(checkpoint);
  TrainingProgress fresh;
  fresh.micro_steps_to_update = 0;
  fresh.scales_loss = true;
  fresh.next_seed = 5;
  std::string misfits;
  const TrainingProgress there = fresh.Restored(checkpoint, &misfits).value();
  EXPECT_EQ(misfits, "");
  EXPECT_EQ(there.updates, 1);
  EXPECT_EQ(there.micro_steps, 2);
  EXPECT_EQ(there.accumulated(), 1);
  EXPECT_EQ(there.base_rate, 0.25);
  EXPECT_EQ(there.seed, here.seed);
  EXPECT_EQ(there.next_seed, 5u);
  EXPECT_EQ(there.loss_scale(), here.loss_scale());
  EXPECT_EQ(there.scaler.good_steps(), 1);
  EXPECT_EQ(there.loss_sum, 7);
  EXPECT_EQ(there.losses, 1);
  checkpoint.properties.erase("session.updates");
  EXPECT_THAT(fresh.Restored(checkpoint, &misfits).status().message(),
              HasSubstr("session.updates"));
}

TEST(TrainingProgressTest, AShardDrawsTheSameNumbersOnAnyNumberOfRanks) {
  TrainingProgress one, half;
  one.logical_shards = half.logical_shards = 4;
  one.micro_steps_to_update = 4;
  half.micro_steps_to_update = 2;
  std::vector<int64_t> alone, together;
  for (int update = 0; update < 2; ++update) {
    for (int shard = 0; shard < 4; ++shard, ++one.micro_steps)
      alone.push_back(one.random_step(/*rank=*/0));
    for (int rank = 0; rank < 2; ++rank) {
      half.micro_steps = 2 * update;
      for (int shard = 0; shard < 2; ++shard, ++half.micro_steps)
        together.push_back(half.random_step(rank));
    }
  }
  EXPECT_EQ(together, alone);
  TrainingProgress unordered;
  unordered.micro_steps = 3;
  EXPECT_EQ(unordered.random_step(1), 3);
}

TEST(TrainingProgressTest, LogicalShardsCountThoseOfAllRanksInACheckpoint) {
  TrainingProgress half;
  half.logical_shards = 4;
  half.micro_steps_to_update = 2;
  half.micro_steps = 6;
  EXPECT_FALSE(half.has_sums());
  Checkpoint checkpoint;
  half.Save(checkpoint);
  EXPECT_EQ(checkpoint.Get<int64_t>("session.micro_steps").value(), 12);
  std::string misfits;
  TrainingProgress one = half;
  one.micro_steps_to_update = 4;
  EXPECT_EQ(one.Restored(checkpoint, &misfits)->micro_steps, 12);
  EXPECT_EQ(misfits, "");
  one.micro_steps = 13;  // in the middle of an update
  EXPECT_TRUE(one.has_sums());
  one.Save(checkpoint);
  ASSERT_TRUE(half.Restored(checkpoint, &misfits).ok());
  EXPECT_THAT(misfits, HasSubstr("accumulated gradients of one rank"));
  one.logical_shards = 8;
  ASSERT_TRUE(one.Restored(checkpoint, &misfits).ok());
  EXPECT_THAT(misfits, HasSubstr("of a run with logical_shards = 4, the session has 8"));
}

}  // namespace
}  // namespace caesura
