// SPDX-License-Identifier: Apache-2.0
#include "training/optimizer/optimizer.h"

#include <gtest/gtest.h>

#include <cmath>

namespace caesura {
namespace {

TEST(GradScaler, GrowsAfterARunOfGoodSteps) {
  GradScaler scaler({.initial_scale = 8, .growth_interval = 3});
  scaler.Update(true);
  scaler.Update(true);
  EXPECT_EQ(scaler.scale(), 8);
  EXPECT_EQ(scaler.good_steps(), 2);
  scaler.Update(true);
  EXPECT_EQ(scaler.scale(), 16);
  EXPECT_EQ(scaler.good_steps(), 0);
}

TEST(GradScaler, BacksOffAndCountsAnew) {
  GradScaler scaler({.initial_scale = 8, .growth_interval = 3});
  scaler.Update(true);
  scaler.Update(true);
  scaler.Update(false);
  EXPECT_EQ(scaler.scale(), 4);
  for (int i = 0; i < 3; ++i) scaler.Update(true);
  EXPECT_EQ(scaler.scale(), 8);
}

TEST(GradScaler, NeverBecomesInfinite) {
  GradScaler scaler({.initial_scale = 3e38f, .growth_interval = 1});
  scaler.Update(true);
  EXPECT_EQ(scaler.scale(), 3e38f);
}

TEST(GradScaler, GoesOnFromACheckpoint) {
  GradScaler scaler({.growth_interval = 3});
  EXPECT_EQ(scaler.scale(), 65536);
  scaler.Restore(4, 2);
  scaler.Update(true);
  EXPECT_EQ(scaler.scale(), 8);
}

TEST(GradScaler, ChecksItsOptions) {
  EXPECT_TRUE(GradScalerOptions{}.Check().ok());
  EXPECT_FALSE((GradScalerOptions{.growth_factor = 1}).Check().ok());
  EXPECT_FALSE((GradScalerOptions{.backoff_factor = 1}).Check().ok());
  EXPECT_FALSE((GradScalerOptions{.growth_interval = 0}).Check().ok());
}

}  // namespace
}  // namespace caesura
