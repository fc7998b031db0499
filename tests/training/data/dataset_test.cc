// SPDX-License-Identifier: Apache-2.0
#include "training/data/dataset.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <set>

#include "training/data/sampler.h"

namespace caesura {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

std::vector<int64_t> Copy(std::span<const int64_t> indices) {
  return {indices.begin(), indices.end()};
}

TEST(ArrayDatasetTest, StacksTheExamplesAskedFor) {
  const auto dataset = MakeArrayDataset({{"x", Tensor::Of<float>({3, 2}, {0, 1, 10, 11, 20, 21})},
                                         {"name", Tensor::Of<std::string>({3}, {"a", "b", "c"})}})
                           .value();
  EXPECT_EQ(dataset->size(), 3);
  const std::vector<int64_t> indices = {2, 0, 2};
  const auto batch = dataset->Batch(indices).value();
  EXPECT_EQ(batch.at("x").shape(), Shape({3, 2}));
  EXPECT_THAT(batch.at("x").ToVector<int>(), ElementsAre(20, 21, 0, 1, 20, 21));
  EXPECT_EQ(batch.at("name").data<std::string>()[0], "c");
  const std::vector<int64_t> outside = {3}, negative = {-1};
  EXPECT_FALSE(dataset->Batch(outside).ok());
  EXPECT_FALSE(dataset->Batch(negative).ok());
  const auto part = Subset(dataset, {1, 0}).value();
  const std::vector<int64_t> first = {0};
  EXPECT_EQ(part->size(), 2);
  EXPECT_THAT(part->Batch(first).value().at("x").ToVector<int>(), ElementsAre(10, 11));
  EXPECT_FALSE(part->Batch(indices).ok());
  EXPECT_FALSE(Subset(dataset, {1, 3}).ok());
}

TEST(ArrayDatasetTest, RefusesArraysOfDifferentLengths) {
  const auto of = [](std::map<std::string, Tensor> arrays) {
    return MakeArrayDataset(std::move(arrays)).status();
  };
  EXPECT_THAT(of({{"a", Tensor::Zeros(DType::kFloat32, {2})},
                  {"b", Tensor::Zeros(DType::kFloat32, {3, 1})}})
                  .message(),
              HasSubstr("a [2], b [3, 1]"));
  EXPECT_FALSE(of({{"a", Tensor::Scalar(1.f)}}).ok());
  EXPECT_FALSE(of({}).ok());
}

TEST(TextDatasetTest, WindowsAndTheirSuccessors) {
  const auto corpus = std::make_shared<const TextCorpus>("abcabd");
  EXPECT_EQ(corpus->vocabulary(), "abcd");
  EXPECT_THAT(corpus->Encode("dab").value(), ElementsAre(3, 0, 1));
  EXPECT_FALSE(corpus->Encode("x").ok());
  const std::vector<int64_t> numbers = {2, 3};
  EXPECT_EQ(corpus->Decode(numbers), "cd");
  const auto dataset = MakeTextDataset(corpus, {.length = 2}).value();
  EXPECT_EQ(dataset->size(), 2);  // ab|c, ca|b; the third would need a character after the text
  const std::vector<int64_t> both = {0, 1};
  const auto batch = dataset->Batch(both).value();
  EXPECT_THAT(batch.at("input").ToVector<int>(), ElementsAre(0, 1, 2, 0));
  EXPECT_THAT(batch.at("target").ToVector<int>(), ElementsAre(1, 2, 0, 1));
  EXPECT_EQ(MakeTextDataset(corpus, {.length = 5}).value()->size(), 1);
  EXPECT_FALSE(MakeTextDataset(corpus, {.length = 6}).ok());
  EXPECT_EQ(MakeTextDataset(corpus, {.length = 1, .begin = 0.5}).value()->size(), 2);
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
