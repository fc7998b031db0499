// SPDX-License-Identifier: Apache-2.0
#include "training/data/dataset.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace caesura {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

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

}  // namespace
}  // namespace caesura
