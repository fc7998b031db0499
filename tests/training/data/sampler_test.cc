// SPDX-License-Identifier: Apache-2.0
#include "training/data/dataset.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <set>

namespace caesura {
namespace {

using ::testing::ElementsAre;

std::vector<int64_t> Copy(std::span<const int64_t> indices) {
  return {indices.begin(), indices.end()};
}

TEST(SamplerTest, EveryExampleOnceAnEpochInAnotherOrder) {
  auto sampler = Sampler::Create({.size = 10, .batch_size = 2, .seed = 5}).value();
  EXPECT_EQ(sampler.batches_per_epoch(), 5);
  std::vector<std::vector<int64_t>> epochs;
  for (int epoch = 0; epoch < 3; ++epoch) {
    std::vector<int64_t> all;
    for (int i = 0; i < 5; ++i) {
      for (const int64_t index : sampler.Batch(epoch * 5 + i)) all.push_back(index);
    }
    EXPECT_EQ(std::set<int64_t>(all.begin(), all.end()).size(), 10u);
    epochs.push_back(all);
  }
  EXPECT_NE(epochs[0], epochs[1]);
  EXPECT_NE(epochs[1], epochs[2]);
}

TEST(SamplerTest, ABatchDependsOnItsNumberAlone) {
  const SamplerOptions options{.size = 37, .batch_size = 5, .seed = 9};
  auto straight = Sampler::Create(options).value();
  std::vector<std::vector<int64_t>> batches;
  for (int64_t n = 0; n < 30; ++n) batches.push_back(Copy(straight.Batch(n)));
  for (int64_t n = 29; n >= 0; --n) {
    auto fresh = Sampler::Create(options).value();
    EXPECT_EQ(Copy(fresh.Batch(n)), batches[n]);
    EXPECT_EQ(Copy(straight.Batch(n)), batches[n]);
  }
  auto other = Sampler::Create({.size = 37, .batch_size = 5, .seed = 10}).value();
  EXPECT_NE(Copy(other.Batch(0)), batches[0]);
}

TEST(SamplerTest, WithoutShuffleAndWithTheRest) {
  auto sampler =
      Sampler::Create({.size = 5, .batch_size = 2, .shuffle = false, .drop_last = false}).value();
  EXPECT_EQ(sampler.batches_per_epoch(), 3);
  EXPECT_THAT(Copy(sampler.Batch(1)), ElementsAre(2, 3));
  EXPECT_THAT(Copy(sampler.Batch(2)), ElementsAre(4));
  EXPECT_THAT(Copy(sampler.Batch(3)), ElementsAre(0, 1));
  EXPECT_FALSE(Sampler::Create({.size = 1, .batch_size = 2}).ok());
  EXPECT_FALSE(Sampler::Create({.size = 0, .batch_size = 1, .drop_last = false}).ok());
  EXPECT_FALSE(Sampler::Create({.size = 5, .batch_size = 0}).ok());
}

}  // namespace
}  // namespace caesura
