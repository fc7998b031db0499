// SPDX-License-Identifier: Apache-2.0
// Training sessions that are ranks of one run, as threads: N ranks with a part of the batch each
// do what one does with the whole batch, and a step happens on all of them or on none.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <atomic>
#include <cmath>
#include <mutex>

#include "core/distributed/communicator.h"
#include "tests/core/execute/faulty_provider.h"
#include "tests/training/rank_session.h"
#include "training/step/gradient_reduction.h"

namespace caesura::testing {
namespace {

using ::testing::HasSubstr;

void ExpectEqualToOne(const RealModel& real, const NamedModel& model, int ranks, int updates) {
  SCOPED_TRACE(std::string(model.name) + " on " + std::to_string(ranks) + " ranks");
  std::vector<double> alone, together;
  const Values want = TrainAlone(real, model, updates, &alone);
  const Values got = TrainOnRanks(real, model, ranks, updates, &together);
  // The bias of attention's keys has no gradient but rounding errors, which Adam makes steps of.
  const auto names =
      TrainingSession::Create(real.model.Clone(), real.options).value()->parameters().Names();
  std::vector<size_t> noise;
  for (size_t i = 0; i < names.size(); ++i) {
    if (names[i].find("qkv_bias") != std::string::npos) noise.push_back(i);
  }
  ExpectCloseValues(got, want, 1e-5, noise);
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
  ExpectCloseValues(TrainOnRanks(real, kModels[0], 2, 5, &together), want, 5e-3);
}

TEST(Ranks, AnySizeOfBucketGivesTheSameBits) {
  const RealModel real = CharGpt();
  const Values want = TrainOnRanks(real, kModels[1], 2, 3, nullptr);
  for (const int64_t bytes : {1, 300, 1 << 30}) {
    const auto edit = [bytes](TrainingOptions& options) { options.ranks.bucket_bytes = bytes; };
    EXPECT_TRUE(SameBits(TrainOnRanks(real, kModels[1], 2, 3, nullptr, edit), want)) << bytes;
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
      EXPECT_EQ(session->parameters().Get(name).value().ToVector<float>(),
                alone->parameters().Get(name).value().ToVector<float>())
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
    EXPECT_EQ(RankSession(own, c)->parameters().Get("w0").value().ToVector<float>(), want);
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
    ExpectCloseValues(session->runs().gradients(), alone->runs().gradients(), 1e-5);
  });
}

TEST(Ranks, WithOtherProgramsAreRefused) {
  RunRanks(3, [&](Communicator& c) {
    RealModel real = Mlp();
    if (c.rank() == 2) real.options.step.clip_norm = 1;
    real.options.ranks.communicator = std::shared_ptr<Communicator>(&c, [](Communicator*) {});
    const auto session = TrainingSession::Create(std::move(real.model), real.options);
    ASSERT_FALSE(session.ok());
    EXPECT_THAT(session.status().message(), HasSubstr("clip_norm is 0 on rank 0, 1 on rank 2"));
  });
}

// The others fail at once with the reason of the ranks that refuse, and all may try again.
TEST(Ranks, BesideOneThatMakesNoSessionAreRefused) {
  const RealModel real = Mlp();
  const std::function<void(TrainingOptions&)> faults[] = {
      [](TrainingOptions& options) { options.step.accumulation_steps = -1; },
      [](TrainingOptions& options) { options.ranks.shard = 7; },
      [](TrainingOptions& options) { options.step.groups = {{.names = {"none"}}}; }};
  const char* const reasons[] = {"accumulation_steps: expected", "shard: expected 0, 1 or 2",
                                 "groups: the model has no initializer"};
  RunRanks(3, [&](Communicator& c) {
    const auto status = [&](const std::function<void(TrainingOptions&)>& edit) {
      RealModel copy = real.Clone();
      copy.options.ranks.communicator = std::shared_ptr<Communicator>(&c, [](Communicator*) {});
      if (edit) edit(copy.options);
      return TrainingSession::Create(std::move(copy.model), copy.options).status();
    };
    for (size_t i = 0; i < std::size(faults); ++i) {
      for (const int refusing : {1, 3}) {  // so many ranks refuse
        const bool refuses = c.rank() >= 3 - refusing;
        const Status refused = status(refuses ? faults[i] : nullptr);
        EXPECT_EQ(refused.code(), StatusCode::kInvalidArgument) << refused.ToString();
        EXPECT_THAT(refused.message(), HasSubstr(reasons[i]));
        EXPECT_EQ(refused.message().find("rank 2 does not join") != std::string::npos, !refuses);
      }
    }
    EXPECT_TRUE(status({}).ok());
  });
}

// A step that differs from the others' is refused by all ranks before anything is summed; they go
// on once it does not.
void ExpectRefusedAndResumed(const std::function<void(TrainingOptions&)>& edit,
                             const std::function<void(TrainingSession&)>& spoil,
                             const std::function<void(TrainingSession&)>& mend,
                             const std::string& words) {
  const RealModel real = Mlp();
  RunRanks(2, [&](Communicator& c) {
    const auto session = RankSession(real, c, edit);
    ASSERT_TRUE(session->Step(PartOf(kModels[0].batch(1), c)).ok());
    if (c.rank() == 1) spoil(*session);
    const Values before = ParametersOf(*session);
    const Status status = session->Step(PartOf(kModels[0].batch(2), c)).status();
    EXPECT_EQ(status.code(), StatusCode::kInvalidArgument) << status.ToString();
    EXPECT_THAT(status.message(), HasSubstr(words));
    EXPECT_TRUE(SameBits(ParametersOf(*session), before));
    EXPECT_EQ(session->progress().micro_steps, 1);
    if (c.rank() == 1) mend(*session);
    for (uint32_t seed = 2; seed < 4; ++seed) {
      const auto loss = session->Step(PartOf(kModels[0].batch(seed), c));
      ASSERT_TRUE(loss.ok()) << loss.status().ToString();
    }
  });
}

TEST(Ranks, WhoseStepsDifferAreRefusedAndGoOn) {
  const auto late = [](TrainingOptions&) {};
  const auto early = [](TrainingOptions& o) { o.step.commit = CommitMode::kEagerConsume; };
  const auto slower = [](TrainingSession& s) { s.runs().set_learning_rate(0.25); };
  const double rate = LearningRate(Mlp().options.step.optimizer);
  const auto as_before = [rate](TrainingSession& s) { s.runs().set_learning_rate(rate); };
  for (const auto& edit :
       {std::function<void(TrainingOptions&)>(late), std::function<void(TrainingOptions&)>(early)})
    ExpectRefusedAndResumed(edit, slower, as_before, ", 0.25 on rank 1");
  const auto scale = [](float by) {
    return [by](TrainingSession& s) {
      Tensor weight = s.parameters().Get("w0").value().Clone().value();
      for (int64_t i = 0; i < weight.elements(); ++i) weight.data<float>()[i] *= by;
      ASSERT_TRUE(s.parameters().Set("w0", weight).ok());
    };
  };
  const auto further = [](int64_t by) {
    return [by](TrainingSession& s) { s.progress().updates += by; };
  };
  ExpectRefusedAndResumed(late, further(3), further(-3), "the number of updates is 1 on rank 0, 4");
  ExpectRefusedAndResumed(late, scale(2), scale(0.5), "the hash of the values of 'w0' is ");
}

TEST(Ranks, BeginWithTheFrozenParametersOfRankZero) {
  RealModel real = Mlp();
  real.options.step.frozen = {"w0"};
  RunRanks(2, [&](Communicator& c) {
    RealModel own = real.Clone();
    Tensor weight = *own.model.graph->Initializer(own.model.graph->FindValue("w0"));
    const std::vector<float> want = weight.ToVector<float>();
    if (c.rank() == 1) {
      Tensor zeros = Tensor::Zeros(weight.dtype(), weight.shape());
      own.model.graph->SetInitializer(own.model.graph->FindValue("w0"), std::move(zeros));
    }
    const auto session = RankSession(own, c);
    EXPECT_EQ(session->parameters().Get("w0").value().ToVector<float>(), want);
    const auto loss = session->Step(PartOf(kModels[0].batch(1), c));
    ASSERT_TRUE(loss.ok()) << loss.status().ToString();
    EXPECT_GT(*loss, 0);
  });
}

// Each bucket is started before the backward has ended, and lies in the arena as one block: no
// gradient is copied into it.
TEST(Ranks, BucketsAreStartedEarlyAndNeedNoCopies) {
  for (const NamedModel& model : kModels) {
    RunRanks(2, [&](Communicator& c) {
      const auto session = RankSession(model.make(), c);
      const auto plan = session->runs().Plan(PartOf(model.batch(1), c)).value();
      int first = -1, last_backward = 0, copies = 0, buckets = 0;
      for (int s = 0; s < static_cast<int>(plan->steps().size()); ++s) {
        const PlanStep& step = plan->steps()[s];
        if (step.node->phase() == Phase::kBackward) last_backward = s;
        const bool reduces = step.node->Is("CollectiveStart", kCaesuraDomain) &&
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

TEST(Ranks, DrawOtherRandomNumbers) {
  RealModel real = DigitsWithDropout();
  real.options.step.keep_outputs = {"scores"};
  std::vector<Values> scores(2);
  RunRanks(2, [&](Communicator& c) {
    const auto session = RankSession(real, c);
    ASSERT_TRUE(session->Step(RowsOf(kModels[3].batch(1), 0, 6)).ok());
    scores[c.rank()] = session->runs().kept_outputs();
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
      const size_t steps = session->runs().Plan(PartOf(batch, c)).value()->steps().size();
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
    if (c.rank() == 1) session->control().set_suspend(true);
    ASSERT_TRUE(session->Step(part).ok());  // all ranks learn it at the end of this one
    const auto stopped = session->Step(part);
    EXPECT_EQ(stopped.status().code(), StatusCode::kSuspended);
    EXPECT_FALSE(session->runs().suspended());
    EXPECT_EQ(session->progress().updates, 2);
    session->control().set_suspend(false);
    EXPECT_TRUE(session->Step(part).ok());
  });
}

// The deadline of one rank suspends all; the flag, which other sessions may share, stays as it is.
TEST(Ranks, ADeadlineIsAgreed) {
  const RealModel real = Mlp();
  RunRanks(2, [&](Communicator& c) {
    const auto session = RankSession(real, c);
    const NamedValues part = PartOf(kModels[0].batch(1), c);
    if (c.rank() == 1) session->control().set_deadline(std::chrono::steady_clock::now());
    ASSERT_TRUE(session->Step(part).ok());
    EXPECT_EQ(session->Step(part).status().code(), StatusCode::kSuspended);
    EXPECT_FALSE(*session->control().suspend_flag());
    if (c.rank() == 1) session->control().set_deadline(std::nullopt);
    else session->control().set_suspend(false);
    ASSERT_TRUE(session->Step(part).ok());
    EXPECT_TRUE(session->Step(part).ok());
  });
}

TEST(Ranks, SuspendAtIsRefusedForOneStep) {
  const RealModel real = Mlp();
  RunRanks(2, [&](Communicator& c) {
    const auto session = RankSession(real, c);
    const NamedValues part = PartOf(kModels[0].batch(1), c);
    session->control().SuspendAt(3);
    EXPECT_THAT(session->Step(part).status().message(), HasSubstr("SuspendAt"));
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
    if (c.rank() == 1) session->control().set_terminate(true);
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
      options.ranks.timeout = std::chrono::milliseconds(200);
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
    real.options.ranks.communicator = std::move(ranks[0]);
    real.options.ranks.join = false;  // there is one rank
    edit(real.options);
    return TrainingSession::Create(std::move(real.model), real.options).status().message();
  };
  EXPECT_THAT(refused([](TrainingOptions& o) {
                o.step.refuse_nonfinite = true;
                o.step.accumulation_steps = 2;
              }),
              HasSubstr("refuse_nonfinite and accumulation_steps do not"));
  EXPECT_THAT(refused([](TrainingOptions& o) {
                o.step.exchange_dtype = DType::kBFloat16;
                o.ranks.shard = 1;
              }),
              HasSubstr("shard and exchange_dtype"));
  EXPECT_THAT(refused([](TrainingOptions& o) {
                o.step.exchange_dtype = DType::kBFloat16;
                o.ranks.logical_shards = 2;
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
