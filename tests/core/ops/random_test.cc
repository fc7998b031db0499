// SPDX-License-Identifier: Apache-2.0
// The generators, and the kernels that draw from Philox.
#include <gtest/gtest.h>

#include <cmath>
#include <numeric>
#include <random>

#include "core/ops/random/mersenne_twister.h"
#include "core/ops/random/philox.h"
#include "tests/kernel_case.h"

namespace caesura {
namespace {

using Values = std::vector<RuntimeValue>;

// The known answers that the authors publish with the algorithm.
TEST(Philox, KnownAnswers) {
  EXPECT_EQ(Philox::Rounds({0, 0, 0, 0}, {0, 0}),
            (Philox::Block{0x6627e8d5, 0xe169c58d, 0xbc57ac4c, 0x9b00dbd8}));
  EXPECT_EQ(Philox::Rounds({~0u, ~0u, ~0u, ~0u}, {~0u, ~0u}),
            (Philox::Block{0x408f276d, 0x41c83b0e, 0xa20bc7c6, 0x6d5451fd}));
  EXPECT_EQ(
      Philox::Rounds({0x243f6a88, 0x85a308d3, 0x13198a2e, 0x03707344}, {0xa4093822, 0x299f31d0}),
      (Philox::Block{0xd16cfe09, 0x94fdcceb, 0x5001e420, 0x24126ea1}));
}

TEST(Philox, TilesHoldTheWordsOfTheirElements) {
  const Philox philox({0x123456789abcdef, 7, 3});
  for (auto [first, last] : {std::pair<int64_t, int64_t>{0, 1000},
                             {3, 5},
                             {255, 517},
                             {(int64_t{1} << 35) + 1, (int64_t{1} << 35) + 300}}) {
    int64_t next = first;
    ForEachWordTile(philox, first, last, [&](int64_t at, const uint32_t* words, int64_t count) {
      ASSERT_EQ(at, next);
      for (int64_t j = 0; j < count; ++j) {
        const Philox::Block block = philox.At(static_cast<uint64_t>((at + j) / 4));
        ASSERT_EQ(words[j], block[(at + j) % 4]) << at + j;
      }
      next = at + count;
    });
    EXPECT_EQ(next, last);
  }
}

// From the seed 5489, as std::mt19937 begins.
MersenneTwister Seeded() {
  MersenneTwister::State state;
  state[0] = 5489;
  for (uint32_t i = 1; i < state.size(); ++i)
    state[i] = 1812433253u * (state[i - 1] ^ (state[i - 1] >> 30)) + i;
  return MersenneTwister(state, MersenneTwister::kSize);
}

TEST(MersenneTwister, GivesTheWordsOfTheStandardLibrary) {
  MersenneTwister ours = Seeded();
  std::mt19937 theirs;
  for (const int count : {1, 2, 620, 0, 624, 3, 5000}) {
    std::vector<uint32_t> words(count);
    ours.Fill(count, words.data());
    for (uint32_t word : words) ASSERT_EQ(word, theirs()) << count;
  }
  // The state can be taken over in the middle.
  MersenneTwister copy(ours.state(), ours.taken());
  uint32_t word;
  copy.Fill(1, &word);
  EXPECT_EQ(word, theirs());
}

TEST(MersenneTwister, ComparesAndScalesTheLowerBits) {
  MersenneTwister ours = Seeded();
  std::mt19937 theirs;
  const auto bits = [&] {
    const uint64_t high = theirs();
    return static_cast<double>((high << 32 | theirs()) & ((uint64_t{1} << 53) - 1)) * 0x1p-53;
  };
  for (const double p : {0.0, 0.3, 1 - 0x1p-53, 1.0}) {
    std::vector<uint16_t> y(1001);
    ours.FillBernoulli<uint16_t>(p, 7, 1001, y.data());
    for (uint16_t one : y) ASSERT_EQ(one, bits() < p ? 7 : 0) << p;
  }
  std::vector<double> doubles(1001);
  ours.FillUniform(0.0, 1.0, 1001, doubles.data());
  for (double x : doubles) ASSERT_EQ(x, bits());
  std::vector<float> floats(1001);
  ours.FillUniform(-2.0f, 2.0f, 1001, floats.data());
  for (float x : floats) ASSERT_EQ(x, static_cast<float>(theirs() & 0xffffff) * 0x1p-22f - 2);
  ours.FillUniform(1.0f, std::nextafter(1.0f, 2.0f), 1001, floats.data());
  for (float x : floats) ASSERT_EQ(x, 1.0f);  // the other half of them rounds up to the end
}

Tensor Draw(const char* op_type, DType dtype, int threads) {
  KernelCase node(op_type, {},
                  {{"shape", std::vector<int64_t>{50001}}, {"dtype", static_cast<int64_t>(dtype)}});
  node.threads = threads;
  return node.Run().value()[0].tensor();
}

TEST(Random, MomentsFitAndThreadsDoNotMatter) {
  for (DType dtype : {DType::kFloat32, DType::kFloat64, DType::kFloat16, DType::kBFloat16}) {
    for (const char* op_type : {"RandomUniform", "RandomNormal"}) {
      const bool normal = std::string(op_type) == "RandomNormal";
      const std::vector<double> x = Draw(op_type, dtype, 1).ToVector<double>();
      EXPECT_EQ(x, Draw(op_type, dtype, 3).ToVector<double>());
      const double n = static_cast<double>(x.size());
      const double mean = std::accumulate(x.begin(), x.end(), 0.0) / n;
      double squares = 0;
      for (double v : x) squares += (v - mean) * (v - mean);
      EXPECT_NEAR(mean, normal ? 0.0 : 0.5, 0.02) << op_type << DTypeName(dtype);
      EXPECT_NEAR(std::sqrt(squares / n), normal ? 1.0 : std::sqrt(1.0 / 12), 0.02);
      if (!normal) {
        for (double v : x) ASSERT_TRUE(v >= 0 && v < 1);
      }
    }
  }
}

Values RunDropout(float ratio, bool training, int threads = 1) {
  const Tensor x = Tensor::Of<float>({40000}, std::vector<float>(40000, 2.0f));
  KernelCase node("Dropout", {x, Tensor::Scalar(ratio), Tensor::Scalar(training)}, {}, "", 2);
  node.threads = threads;
  return node.Run().value();
}

TEST(Dropout, KeepsAndScales) {
  const Values out = RunDropout(0.25f, true);
  const std::vector<float> y = out[0].tensor().ToVector<float>();
  const std::vector<int> mask = out[1].tensor().ToVector<int>();
  for (size_t i = 0; i < y.size(); ++i) ASSERT_FLOAT_EQ(y[i], mask[i] ? 2.0f / 0.75f : 0.0f);
  EXPECT_NEAR(std::accumulate(mask.begin(), mask.end(), 0) / 40000.0, 0.75, 0.01);
  EXPECT_EQ(RunDropout(0.25f, true, 4)[1].tensor().ToVector<int>(), mask);
}

TEST(Dropout, EdgesOfTheRatio) {
  for (auto [ratio, training, kept] :
       {std::tuple{0.5f, false, 1}, {0.0f, true, 1}, {1.0f, true, 0}}) {
    const Values out = RunDropout(ratio, training);
    for (float y : out[0].tensor().ToVector<float>()) ASSERT_EQ(y, 2.0f * kept);
    for (int mask : out[1].tensor().ToVector<int>()) ASSERT_EQ(mask, kept);
  }
  KernelCase bad("Dropout", {Tensor::Scalar(1.0f), Tensor::Scalar(1.5f), Tensor::Scalar(true)});
  EXPECT_EQ(bad.Run().status().code(), StatusCode::kInvalidArgument);
}

TEST(Multinomial, FollowsTheProbabilities) {
  const Tensor logits = Tensor::Of<float>({1, 3}, {std::log(0.1f), std::log(0.3f), std::log(0.6f)});
  KernelCase node("Multinomial", {logits}, {{"sample_size", int64_t{20000}}});
  std::vector<double> share(3, 0.0);
  for (int c : node.Run().value()[0].tensor().ToVector<int>()) share.at(c) += 1 / 20000.0;
  EXPECT_NEAR(share[0], 0.1, 0.015);
  EXPECT_NEAR(share[2], 0.6, 0.015);
}

}  // namespace
}  // namespace caesura
