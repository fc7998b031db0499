// SPDX-License-Identifier: Apache-2.0
// Ranks exchange gradients in which each token counts alike, and gradients in bfloat16.
#include <gtest/gtest.h>

#include <cmath>
#include <mutex>

#include "core/distributed/communicator.h"
#include "tests/training/rank_session.h"

namespace caesura::testing {
namespace {

// Every second target of the first rows is ignored, and in row 0 all of them.
NamedValues WithIgnored(NamedValues batch, const char* target) {
  const Tensor all = batch.at(target).tensor();
  const int64_t row = all.elements() / all.shape()[0];
  for (int64_t e = 0; e < all.elements() / 2; ++e) {
    if (e < row || e % 2 == 0) all.data<int64_t>()[e] = -100;
  }
  return batch;
}

struct TokensCase {
  int accumulate, shard, logical_shards;
  double clip;
};
class MeanOverTokens : public ::testing::TestWithParam<TokensCase> {};
INSTANTIATE_TEST_SUITE_P(Options, MeanOverTokens,
                         ::testing::Values(TokensCase{1, 0, 0, 0}, TokensCase{3, 0, 0, 0.5},
                                           TokensCase{1, 1, 0, 0.5}, TokensCase{3, 2, 0, 0},
                                           TokensCase{1, 0, 4, 0.5}));

// Ranks and micro-steps whose batches count other numbers of tokens do what one does with all of
// them in one batch; the mean over batches does not.
TEST_P(MeanOverTokens, IsThatOfTheWholeBatch) {
  const TokensCase& one = GetParam();
  constexpr int kRanks = 4, kSteps = 20;
  for (const NamedModel& model : {kModels[0], kModels[1]}) {
    SCOPED_TRACE(model.name);
    RealModel real = model.make();
    real.options.step.clip_norm = one.clip;
    real.options.step.optimizer = Sgd{.learning_rate = 0.1, .momentum = 0.9};
    const char* target = std::string(model.name) == "mlp" ? "labels" : "next";
    const auto alone = SessionOf(real);
    std::vector<double> losses;
    for (int u = 0; u < kSteps; ++u)
      losses.push_back(alone->Step(WithIgnored(model.batch(100 + u), target)).value());
    const Values want = ParametersOf(*alone);
    const int parts = one.logical_shards > 0 ? one.logical_shards : kRanks * one.accumulate;
    for (const MeanOver mean : {MeanOver::kTokens, MeanOver::kBatches}) {
      RunRanks(kRanks, [&](Communicator& c) {
        const auto session = RankSession(real, c, [&](TrainingOptions& options) {
          options.step.accumulation_steps = one.accumulate;
          options.step.mean_over = mean;
          options.ranks.shard = one.shard;
          options.ranks.logical_shards = one.logical_shards;
        });
        bool is_near = true, is_far = false;
        for (int u = 0; u < kSteps; ++u) {
          const NamedValues batch = WithIgnored(model.batch(100 + u), target);
          Result<double> loss = 0.0;
          for (int i = 0; i < parts / kRanks; ++i) {
            const int64_t part = c.rank() * (parts / kRanks) + i, rows = kRows / parts;
            loss = session->Step(RowsOf(batch, part * rows, (part + 1) * rows));
            ASSERT_TRUE(loss.ok()) << loss.status().ToString();
          }
          const double error = std::abs(session->progress().update_loss / losses[u] - 1);
          is_near &= error <= 1e-5;
          is_far |= !(error <= 1e-3);  // NaN where a row has no token
        }
        if (mean == MeanOver::kTokens) {
          EXPECT_TRUE(is_near);
          ExpectCloseValues(ParametersOf(*session), want, 1e-5);
        } else {
          EXPECT_TRUE(is_far);
        }
      });
    }
  }
}

// One process: the micro-steps of an update are as one batch.
TEST(MeanOverTokensOfOne, AccumulatesAsOneBatch) {
  RealModel real = Mlp();
  const auto alone = SessionOf(real);
  real.options.step.accumulation_steps = 4;
  real.options.step.mean_over = MeanOver::kTokens;
  const auto session = SessionOf(real);
  for (int u = 0; u < 5; ++u) {
    const NamedValues batch = WithIgnored(kModels[0].batch(100 + u), "labels");
    for (int i = 0; i < 4; ++i) ASSERT_TRUE(session->Step(RowsOf(batch, 3 * i, 3 * i + 3)).ok());
    EXPECT_NEAR(session->progress().update_loss, alone->Step(batch).value(), 1e-5);
  }
  ExpectCloseValues(ParametersOf(*session), ParametersOf(*alone), 1e-5);
}

// Squared errors count elements of the prediction. Ranks have other numbers of rows.
TEST(MeanOverTokensOfRanks, CountsElementsOfOtherLosses) {
  RealModel real = Mlp();
  real.options.step.loss = Loss::MeanSquaredError("scores_target");
  real.options.step.mean_over = MeanOver::kTokens;
  const auto batch = [](uint32_t seed) {
    NamedValues all = kModels[0].batch(seed);
    all.erase("labels");
    all["scores_target"] =
        RandomBatch(seed + 1, "y", Shape{kRows, 10}, false, "unused", Shape{1}, 2)["y"];
    return all;
  };
  const auto alone = SessionOf(real);
  for (uint32_t u = 0; u < 5; ++u) ASSERT_TRUE(alone->Step(batch(u)).ok());
  RunRanks(2, [&](Communicator& c) {
    const auto session = RankSession(real, c);
    for (uint32_t u = 0; u < 5; ++u) {
      const auto part = c.rank() == 0 ? RowsOf(batch(u), 0, 3) : RowsOf(batch(u), 3, kRows);
      ASSERT_TRUE(session->Step(part).ok());
    }
    ExpectCloseValues(ParametersOf(*session), ParametersOf(*alone), 1e-5);
  });
}

TEST(Ranks, ExchangeGradientsInBFloat16) {
  RealModel real = CharGpt();
  real.options.step.clip_norm = 0;
  real.options.step.optimizer = Sgd{.learning_rate = 0};
  real.options.step.keep_gradients = true;
  const NamedValues batch = kModels[1].batch(3);
  std::vector<Values> parts;  // the gradient of each rank's part
  for (int r = 0; r < 2; ++r) {
    const auto session = SessionOf(real);
    ASSERT_TRUE(session->Step(RowsOf(batch, r * kRows / 2, (r + 1) * kRows / 2)).ok());
    parts.push_back(session->runs().gradients());
  }
  RunRanks(2, [&](Communicator& c) {
    const auto session = RankSession(
        real, c, [](TrainingOptions& options) { options.step.exchange_dtype = DType::kBFloat16; });
    ASSERT_TRUE(session->Step(PartOf(batch, c)).ok());
    int64_t other = 0;
    for (size_t i = 0; i < parts[0].size(); ++i) {
      const Tensor& got = session->runs().gradients()[i].tensor();
      ASSERT_EQ(got.dtype(), DType::kFloat32);
      for (int64_t e = 0; e < got.elements(); ++e) {
        const double a = parts[0][i].tensor().data<float>()[e];
        const double b = parts[1][i].tensor().data<float>()[e];
        const double value = got.data<float>()[e];
        // Each part is rounded to 8 bits, and so is the sum: 2^-8 of each.
        EXPECT_LE(std::abs(value - (a + b) / 2), 1.01 / 128 * (std::abs(a) + std::abs(b)) / 2);
        other += std::abs(value - (a + b) / 2) > 1e-6 * std::abs(a + b);
      }
    }
    EXPECT_GT(other, 100);  // they were rounded
  });
}

TEST(Ranks, TrainByGradientsInBFloat16) {
  RealModel real = Mlp();
  for (const int accumulate : {1, 2}) {
    real.options.step.accumulation_steps = accumulate;
    std::vector<double> alone, together;
    const Values want = TrainAlone(real, kModels[0], 20, &alone);
    const auto edit = [](TrainingOptions& options) {
      options.step.exchange_dtype = DType::kBFloat16;
    };
    ExpectCloseValues(TrainOnRanks(real, kModels[0], 4, 20, &together, edit), want, 2e-2);
    for (size_t u = 0; u < alone.size(); ++u) EXPECT_NEAR(together[u], alone[u], 5e-3 * alone[u]);
  }
}

}  // namespace
}  // namespace caesura::testing
