// SPDX-License-Identifier: Apache-2.0
#include "training/optimizer/optimizer.h"

#include <gtest/gtest.h>

#include <cmath>

namespace caesura {
namespace {

TEST(LrSchedule, ConstantIsOne) {
  EXPECT_EQ(LrSchedule{}.Factor(0), 1);
  EXPECT_EQ(LrSchedule{}.Factor(1000000), 1);
}

TEST(LrSchedule, WarmupIsLinear) {
  const LrSchedule transformers{.warmup_steps = 4};
  const double expected[] = {0, 0.25, 0.5, 0.75, 1, 1};
  for (int t = 0; t < 6; ++t) EXPECT_DOUBLE_EQ(transformers.Factor(t), expected[t]);
  const LrSchedule torch{.warmup_steps = 4, .warmup_start = 0.5};
  EXPECT_DOUBLE_EQ(torch.Factor(0), 0.5);
  EXPECT_DOUBLE_EQ(torch.Factor(1), 0.5 + 0.5 / 4);
}

// transformers.get_linear_schedule_with_warmup(optimizer, 2, 10)
TEST(LrSchedule, LinearWithWarmup) {
  const LrSchedule schedule = NamedSchedule("linear", 10, 2).value();
  const double expected[] = {0, 0.5, 1, 0.875, 0.75, 0.625, 0.5, 0.375, 0.25, 0.125, 0, 0};
  for (int t = 0; t < 12; ++t) EXPECT_DOUBLE_EQ(schedule.Factor(t), expected[t]);
}

// torch.optim.lr_scheduler.CosineAnnealingLR(T_max=4, eta_min=0.1 * base)
TEST(LrSchedule, Cosine) {
  const LrSchedule schedule{.decay = CosineDecay{.steps = 4, .end = 0.1}};
  const double r = std::sqrt(0.5);
  const double expected[] = {1, 0.1 + 0.45 * (1 + r), 0.55, 0.1 + 0.45 * (1 - r), 0.1, 0.1};
  for (int t = 0; t < 6; ++t) EXPECT_NEAR(schedule.Factor(t), expected[t], 1e-15);
}

// torch.optim.lr_scheduler.PolynomialLR(total_iters=4, power=2)
TEST(LrSchedule, Polynomial) {
  const LrSchedule schedule{.decay = PolynomialDecay{.steps = 4, .power = 2}};
  const double expected[] = {1, 0.5625, 0.25, 0.0625, 0, 0};
  for (int t = 0; t < 6; ++t) EXPECT_DOUBLE_EQ(schedule.Factor(t), expected[t]);
}

// torch.optim.lr_scheduler.StepLR(step_size=3, gamma=0.5)
TEST(LrSchedule, Step) {
  const LrSchedule schedule{.decay = StepDecay{.every = 3, .gamma = 0.5}};
  const double expected[] = {1, 1, 1, 0.5, 0.5, 0.5, 0.25};
  for (int t = 0; t < 7; ++t) EXPECT_DOUBLE_EQ(schedule.Factor(t), expected[t]);
}

TEST(LrSchedule, ChecksWhatItIsGiven) {
  EXPECT_TRUE(LrSchedule{}.Check().ok());
  EXPECT_FALSE((LrSchedule{.decay = CosineDecay{}}).Check().ok());
  EXPECT_FALSE((LrSchedule{.decay = StepDecay{.every = 3, .gamma = NAN}}).Check().ok());
  EXPECT_FALSE((LrSchedule{.warmup_steps = -1}).Check().ok());
  EXPECT_FALSE(NamedSchedule("exponential", 10).ok());
  EXPECT_FALSE(NamedSchedule("linear", 10, 10).ok());
}

}  // namespace
}  // namespace caesura
