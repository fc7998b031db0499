// SPDX-License-Identifier: Apache-2.0
// Training sessions that are ranks of one run, as threads: N ranks with a part of the batch each
// do what one does with the whole batch, and a step happens on all of them or on none.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <atomic>
#include <cmath>
#include <mutex>

#include "core/distributed/local_communicator.h"
#include "tests/core/execute/faulty_provider.h"
#include "tests/training/rank_session.h"
#include "training/gradient_reduction.h"

namespace caesura::testing {
namespace {

using ::testing::HasSubstr;

// `except`: not these.
void ExpectClose(const Values& got, const Values& want, double tolerance,
                 const std::vector<size_t>& except = {}) {
  for (size_t i = 0; i < want.size(); ++i) {
    if (std::find(except.begin(), except.end(), i) != except.end()) continue;
    const Tensor &a = got[i].tensor(), &b = want[i].tensor();
    double difference = 0, size = 1e-3;
    for (int64_t e = 0; e < a.elements(); ++e) {
      difference = std::max<double>(difference, std::abs(a.data<float>()[e] - b.data<float>()[e]));
      size = std::max<double>(size, std::abs(b.data<float>()[e]));
    }
    EXPECT_LE(difference / size, tolerance) << "parameter " << i;
  }
}

// The parameters after `updates`, checked to be the same bits on all ranks.
Values TrainRanks(const RealModel& real, const NamedModel& model, int ranks, int updates,
                  std::vector<double>* losses,
                  const std::function<void(TrainingOptions&)>& edit = {}) {
  std::mutex mutex;
  std::vector<Values> ends(ranks);
  std::vector<std::vector<double>> curves(ranks);
  RunRanks(ranks, [&](Communicator& c) {
    const auto session = RankSession(real, c, edit);
    const int steps = std::max(1, real.options.step.accumulation_steps);
    for (int u = 0; u < updates * steps; ++u) {
      const Result<double> loss = session->Step(PartOf(model.batch(100 + u), c));
      ASSERT_TRUE(loss.ok()) << loss.status().ToString();
      if ((u + 1) % steps == 0) curves[c.rank()].push_back(*loss);
    }
    const std::lock_guard lock(mutex);
    ends[c.rank()] = ParametersOf(*session);
  });
  for (int r = 1; r < ranks; ++r) {
    EXPECT_TRUE(SameBits(ends[0], ends[r])) << "rank " << r;
    EXPECT_EQ(curves[0], curves[r]);
  }
  if (losses != nullptr) *losses = curves[0];
  return ends[0];
}

// The same with the whole batch in one process.
Values TrainAlone(const RealModel& real, const NamedModel& model, int updates,
                  std::vector<double>* losses) {
  RealModel copy = real.Clone();
  auto session = TrainingSession::Create(std::move(copy.model), copy.options).value();
  const int steps = std::max(1, real.options.step.accumulation_steps);
  for (int u = 0; u < updates * steps; ++u) {
    const double loss = session->Step(model.batch(100 + u)).value();
    if ((u + 1) % steps == 0) losses->push_back(loss);
  }
  return ParametersOf(*session);
}

void ExpectEqualToOne(const RealModel& real, const NamedModel& model, int ranks, int updates) {
  SCOPED_TRACE(std::string(model.name) + " on " + std::to_string(ranks) + " ranks");
  std::vector<double> alone, together;
  const Values want = TrainAlone(real, model, updates, &alone);
  const Values got = TrainRanks(real, model, ranks, updates, &together);
  // The bias of attention's keys has no gradient but rounding errors, which Adam makes steps of.
  const auto names =
      TrainingSession::Create(real.model.Clone(), real.options).value()->ParameterNames();
  std::vector<size_t> noise;
  for (size_t i = 0; i < names.size(); ++i) {
    if (names[i].find("qkv_bias") != std::string::npos) noise.push_back(i);
  }
  ExpectClose(got, want, 1e-5, noise);
  for (int u = 0; u < updates; ++u) EXPECT_NEAR(together[u], alone[u], 1e-5 * alone[u]);
}

TEST(Ranks, DoWhatOneDoesWithTheWholeBatch) {
  for (const NamedModel& model : {kModels[0], kModels[1], kModels[2]}) {
    for (const int ranks : {2, 4}) ExpectEqualToOne(model.make(), model, ranks, 20);
  }
}

TEST(Ranks, OptionsOfAStep) {
  RealModel clipped = Mlp(), accumulated = Mlp(), composed = Mlp();
  clipped.options.step.clip_norm = 0.3;
  accumulated.options.step.accumulation_steps = 3;
  composed.options.step.optimizer = Adafactor{};
  for (const RealModel* real : {&clipped, &accumulated, &composed})
    ExpectEqualToOne(*real, kModels[0], 2, 5);
}

TEST(Ranks, AScaledLoss) {
  RealModel real = Mlp();
  real.options.step.precision = DType::kFloat16;
  std::vector<double> alone, together;
  const Values want = TrainAlone(real, kModels[0], 5, &alone);
  // Half precision: its own rounding of other batches.
  ExpectClose(TrainRanks(real, kModels[0], 2, 5, &together), want, 5e-3);
}

TEST(Ranks, AnySizeOfBucketGivesTheSameBits) {
  const RealModel real = CharGpt();
  const Values want = TrainRanks(real, kModels[1], 2, 3, nullptr);
  for (const int64_t bytes : {1, 300, 1 << 30}) {
    const auto edit = [bytes](TrainingOptions& options) { options.bucket_bytes = bytes; };
    EXPECT_TRUE(SameBits(TrainRanks(real, kModels[1], 2, 3, nullptr, edit), want)) << bytes;
  }
}

TEST(Ranks, StatisticsAreThoseOfRankZero) {
  const RealModel real = Digits();
  RealModel first = real.Clone();
  auto alone = TrainingSession::Create(std::move(first.model), first.options).value();
  const NamedValues batch = kModels[3].batch(5);
  ASSERT_TRUE(alone->Step(RowsOf(batch, 0, kRows / 2)).ok());
  RunRanks(2, [&](Communicator& c) {
    const auto session = RankSession(real, c);
    ASSERT_TRUE(session->Step(PartOf(batch, c)).ok());
    for (const char* name : {"mean0", "var1"}) {
      EXPECT_EQ(session->Parameter(name).value().ToVector<float>(),
                alone->Parameter(name).value().ToVector<float>())
          << name << " on rank " << c.rank();
    }
  });
}

TEST(Ranks, BeginWithTheParametersOfRankZero) {
  const RealModel real = Mlp();
  RunRanks(2, [&](Communicator& c) {
    RealModel own = real.Clone();
    Tensor weight = *own.model.graph->Initializer(own.model.graph->FindValue("w0"));
    const std::vector<float> want = weight.ToVector<float>();
    if (c.rank() == 1) {
      Tensor zeros = Tensor::Zeros(weight.dtype(), weight.shape());
      own.model.graph->SetInitializer(own.model.graph->FindValue("w0"), std::move(zeros));
    }
    EXPECT_EQ(RankSession(own, c)->Parameter("w0").value().ToVector<float>(), want);
  });
}

TEST(Ranks, GradientsAreMeans) {
  RealModel real = Mlp();
  real.options.step.keep_gradients = true;
  RealModel copy = real.Clone();
  auto alone = TrainingSession::Create(std::move(copy.model), copy.options).value();
  const NamedValues batch = kModels[0].batch(3);
  ASSERT_TRUE(alone->Step(batch).ok());
  RunRanks(2, [&](Communicator& c) {
    const auto session = RankSession(real, c);
    ASSERT_TRUE(session->Step(PartOf(batch, c)).ok());
    ExpectClose(session->gradients(), alone->gradients(), 1e-5);
  });
}

TEST(Ranks, WithOtherProgramsAreRefused) {
  RunRanks(3, [&](Communicator& c) {
    RealModel real = Mlp();
    if (c.rank() == 2) real.options.step.clip_norm = 1;
    real.options.communicator = std::shared_ptr<Communicator>(&c, [](Communicator*) {});
    const auto session = TrainingSession::Create(std::move(real.model), real.options);
    ASSERT_FALSE(session.ok());
    EXPECT_THAT(session.status().message(), HasSubstr("the step of rank 2 is another one"));
  });
}

// Each bucket is started before the backward has ended, and lies in the arena as one block: no
// gradient is copied into it.
TEST(Ranks, BucketsAreStartedEarlyAndNeedNoCopies) {
  for (const NamedModel& model : kModels) {
    RunRanks(2, [&](Communicator& c) {
      const auto session = RankSession(model.make(), c);
      const auto plan = session->StepPlan(PartOf(model.batch(1), c)).value();
      int first = -1, last_backward = 0, copies = 0, buckets = 0;
      for (int s = 0; s < static_cast<int>(plan->steps().size()); ++s) {
        const Step& step = plan->steps()[s];
        if (step.node->phase() == Phase::kBackward) last_backward = s;
        const bool reduces = step.node->Is("CollectiveStart", kTrainingDomain) &&
                             step.node->Attr<std::string>("kind", "") == "all_reduce";
        if (!reduces) continue;
        if (first < 0) first = s;
        ++buckets;
        const uint32_t* ids = plan->arguments().data() + step.first_argument;
        for (uint32_t i = 0; i < step.input_count; ++i) {
          if (ids[i] != ids[step.input_count + i]) ++copies;
        }
      }
      EXPECT_LT(first, last_backward) << model.name;
      EXPECT_GT(buckets, 1) << model.name;
      EXPECT_EQ(copies, 0) << model.name;
    });
  }
}

TEST(Ranks, OtherSequenceLengthsOnEachRank) {
  const RealModel real = CharGpt();
  std::vector<Values> ends(2);
  RunRanks(2, [&](Communicator& c) {
    const auto session = RankSession(real, c);
    const int64_t time = c.rank() == 0 ? 6 : 3;
    for (uint32_t u = 0; u < 3; ++u) {
      const auto loss =
          session->Step(RandomBatch(u, "tokens", Shape{2, time}, true, "next", Shape{2, time}, 11));
      ASSERT_TRUE(loss.ok()) << loss.status().ToString();
    }
    ends[c.rank()] = ParametersOf(*session);
  });
  EXPECT_TRUE(SameBits(ends[0], ends[1]));
}

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
          options.shard = one.shard;
          options.logical_shards = one.logical_shards;
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
          const double error = std::abs(session->update_loss() / losses[u] - 1);
          is_near &= error <= 1e-5;
          is_far |= !(error <= 1e-3);  // NaN where a row has no token
        }
        if (mean == MeanOver::kTokens) {
          EXPECT_TRUE(is_near);
          ExpectClose(ParametersOf(*session), want, 1e-5);
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
    EXPECT_NEAR(session->update_loss(), alone->Step(batch).value(), 1e-5);
  }
  ExpectClose(ParametersOf(*session), ParametersOf(*alone), 1e-5);
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
    ExpectClose(ParametersOf(*session), ParametersOf(*alone), 1e-5);
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
    parts.push_back(session->gradients());
  }
  RunRanks(2, [&](Communicator& c) {
    const auto session = RankSession(
        real, c, [](TrainingOptions& options) { options.step.exchange_dtype = DType::kBFloat16; });
    ASSERT_TRUE(session->Step(PartOf(batch, c)).ok());
    int64_t other = 0;
    for (size_t i = 0; i < parts[0].size(); ++i) {
      const Tensor& got = session->gradients()[i].tensor();
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
    ExpectClose(TrainRanks(real, kModels[0], 4, 20, &together, edit), want, 2e-2);
    for (size_t u = 0; u < alone.size(); ++u) EXPECT_NEAR(together[u], alone[u], 5e-3 * alone[u]);
  }
}

TEST(Ranks, DrawOtherRandomNumbers) {
  RealModel real = DigitsWithDropout();
  real.options.step.keep_outputs = {"scores"};
  std::vector<Values> scores(2);
  RunRanks(2, [&](Communicator& c) {
    const auto session = RankSession(real, c);
    ASSERT_TRUE(session->Step(RowsOf(kModels[3].batch(1), 0, 6)).ok());
    scores[c.rank()] = session->kept_outputs();
  });
  EXPECT_FALSE(SameBits(scores[0], scores[1]));
}

// --- whole or not at all ---

TEST(Ranks, OneRanksNaNIsRefusedByAll) {
  RealModel real = Mlp();
  real.options.step.refuse_nonfinite = true;
  RunRanks(2, [&](Communicator& c) {
    const auto session = RankSession(real, c);
    ASSERT_TRUE(session->Step(PartOf(kModels[0].batch(1), c)).ok());
    const Values before = ParametersOf(*session);
    NamedValues poisoned = PartOf(kModels[0].batch(2), c);
    if (c.rank() == 1) poisoned.find("x")->second.tensor().data<float>()[0] = NAN;
    const auto refused = session->Step(poisoned);
    ASSERT_FALSE(refused.ok());
    EXPECT_THAT(refused.status().message(), HasSubstr("the step was refused"));
    EXPECT_TRUE(SameBits(ParametersOf(*session), before));
    const auto next = session->Step(PartOf(kModels[0].batch(2), c));
    EXPECT_TRUE(next.ok()) << next.status().ToString();
  });
}

// Rank 1 fails at each of its kernels in turn: rank 0 learns it, and neither has changed.
TEST(Ranks, AStepThatFailsOnOneRankHappensOnNone) {
  const RealModel real = Digits();
  const NamedValues batch = kModels[3].batch(2);
  int calls = 1, ends_lost = 0;
  for (int k = 0; k < calls; ++k) {
    SCOPED_TRACE("call " + std::to_string(k));
    std::atomic<int> failed = 0, lost_steps = 0, counted = 0;
    RunRanks(2, [&](Communicator& c) {
      auto provider = std::make_shared<FailingProvider>(TrainingCpu());
      provider->FailAt(-1);
      const auto session =
          RankSession(real, c, [&](TrainingOptions& options) { options.providers = {provider}; });
      ASSERT_TRUE(session->Step(PartOf(kModels[3].batch(1), c)).ok());
      const size_t steps = session->StepPlan(PartOf(batch, c)).value()->steps().size();
      const Values before = ParametersOf(*session);
      provider->FailAt(c.rank() == 1 ? k : -1);
      const auto loss = session->Step(PartOf(batch, c));
      if (c.rank() == 1) counted = static_cast<int>(steps);
      failed += !loss.ok();
      const bool same = SameBits(ParametersOf(*session), before);
      EXPECT_TRUE(!loss.ok() || !same);
      const bool lost = !loss.ok() && loss.status().message().find("lost") != std::string::npos;
      lost_steps += lost;
      EXPECT_TRUE(loss.ok() || lost || same) << loss.status().ToString();
      if (!loss.ok() && c.rank() == 0) {
        EXPECT_EQ(loss.status().code(), StatusCode::kRankFailure) << loss.status().ToString();
        EXPECT_THAT(loss.status().message(), HasSubstr("rank 1"));
      }
    });
    calls = counted;
    // After the agreement rank 1 fails in its own updates only, and says that it is lost.
    EXPECT_TRUE(failed == 2 || (failed == 1 && lost_steps == 1)) << failed << " failed";
    ends_lost += lost_steps;
  }
  EXPECT_GT(calls, 30);
  EXPECT_LT(ends_lost, calls / 2);
}

TEST(Ranks, ASuspensionIsAgreed) {
  const RealModel real = Mlp();
  RunRanks(2, [&](Communicator& c) {
    const auto session = RankSession(real, c);
    const NamedValues part = PartOf(kModels[0].batch(1), c);
    ASSERT_TRUE(session->Step(part).ok());
    if (c.rank() == 1) session->set_suspend(true);
    ASSERT_TRUE(session->Step(part).ok());  // all ranks learn it at the end of this one
    const auto stopped = session->Step(part);
    EXPECT_EQ(stopped.status().code(), StatusCode::kSuspended);
    EXPECT_FALSE(session->suspended());
    EXPECT_EQ(session->updates(), 2);
    session->set_suspend(false);
    EXPECT_TRUE(session->Step(part).ok());
  });
}

TEST(Ranks, ACancelledRankEndsTheStepOfTheOthers) {
  const RealModel real = Mlp();
  RunRanks(2, [&](Communicator& c) {
    const auto session = RankSession(real, c);
    const NamedValues part = PartOf(kModels[0].batch(1), c);
    ASSERT_TRUE(session->Step(part).ok());
    const Values before = ParametersOf(*session);
    if (c.rank() == 1) session->set_terminate(true);
    const auto ended = session->Step(part);
    EXPECT_EQ(ended.status().code(),
              c.rank() == 1 ? StatusCode::kCancelled : StatusCode::kRankFailure);
    EXPECT_TRUE(SameBits(ParametersOf(*session), before));
  });
}

TEST(Ranks, ALateRankIsAnError) {
  const RealModel real = Mlp();
  RunRanks(2, [&](Communicator& c) {
    const auto session = RankSession(real, c, [](TrainingOptions& options) {
      options.rank_timeout = std::chrono::milliseconds(200);
    });
    const NamedValues part = PartOf(kModels[0].batch(1), c);
    ASSERT_TRUE(session->Step(part).ok());
    const Values before = ParametersOf(*session);
    if (c.rank() == 1) return;  // it ends, or is late: either way it does not come
    EXPECT_EQ(session->Step(part).status().code(), StatusCode::kRankFailure);
    EXPECT_TRUE(SameBits(ParametersOf(*session), before));
  });
}

TEST(Ranks, OptionsThatDoNotFitAreRefused) {
  const auto refused = [](const std::function<void(TrainingOptions&)>& edit) {
    auto ranks = LocalCommunicators(2);
    RealModel real = Mlp();
    real.options.communicator = std::move(ranks[0]);
    edit(real.options);
    return TrainingSession::Create(std::move(real.model), real.options).status().message();
  };
  EXPECT_THAT(refused([](TrainingOptions& o) { o.step.commit = CommitMode::kEagerConsume; }),
              HasSubstr("use CommitMode::kLate"));
  EXPECT_THAT(refused([](TrainingOptions& o) {
                o.step.refuse_nonfinite = true;
                o.step.accumulation_steps = 2;
              }),
              HasSubstr("only without accumulation"));
  EXPECT_THAT(refused([](TrainingOptions& o) {
                o.step.exchange_dtype = DType::kBFloat16;
                o.shard = 1;
              }),
              HasSubstr("expected shard 0"));
  EXPECT_THAT(refused([](TrainingOptions& o) {
                o.step.exchange_dtype = DType::kBFloat16;
                o.logical_shards = 2;
              }),
              HasSubstr("would depend on the number of ranks"));
  EXPECT_THAT(refused([](TrainingOptions& o) { o.step.exchange_dtype = DType::kFloat16; }),
              HasSubstr("expected bfloat16 or none, got float16"));
  for (OnFailure action : {OnFailure::kSkip, OnFailure::kRetry, OnFailure::kRetryOnDefaults,
                           OnFailure::kRetryInParts}) {
    EXPECT_THAT(refused([&](TrainingOptions& o) { o.failures.action = action; }),
                HasSubstr("with other ranks a failed step stops"));
  }
}

}  // namespace
}  // namespace caesura::testing
