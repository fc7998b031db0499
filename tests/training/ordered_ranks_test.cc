// SPDX-License-Identifier: Apache-2.0
// Ordered sums: with a number of logical shards, any number of ranks has the same bits.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <atomic>

#include "core/distributed/communicator.h"
#include "core/onnx/inference/shape_inference.h"
#include "tests/core/execute/faulty_provider.h"
#include "tests/temporary_folder.h"
#include "tests/training/rank_session.h"
#include "training/session/rank_group.h"

namespace caesura::testing {
namespace {

using ::testing::HasSubstr;

constexpr int kUpdatesOfRun = 20;

// The character GPT with dropout after its embedding and in its head.
RealModel DroppingGpt() {
  RealModel real = CharGpt();
  Graph& graph = *real.model.graph;
  Value* rate = graph.AddInitializer("rate", Tensor::Scalar<float>(0.25f));
  Value* on = graph.AddInitializer("on", Tensor::Scalar<bool>(true));
  for (const char* name : {"x", "last"}) {
    Value* value = graph.FindValue(name);
    Node* drop = graph.AddOp("Dropout", {value, rate, on}, {}, "", 1, "dropped");
    graph.ReplaceAllUses(value, drop->output(0));
    drop->SetInput(0, value);
  }
  EXPECT_TRUE(graph.SortTopologically().ok());
  EXPECT_TRUE(InferShapes(graph).ok());
  return real;
}

struct OrderedRun {
  std::vector<double> losses;
  Values parameters;
};

// Parameters and losses of updates `first` and on, on so many ranks. Rank r gives its shards of
// each batch.
OrderedRun TrainOrdered(const RealModel& real, const NamedModel& model, int shards, int ranks,
                        int64_t bucket, const std::function<void(TrainingSession&)>& begin = {},
                        const std::function<void(TrainingSession&)>& end = {}, int first = 0,
                        int last = kUpdatesOfRun) {
  std::vector<OrderedRun> runs(ranks);
  RunRanks(ranks, [&](Communicator& c) {
    const auto session = RankSession(real, c, [&](TrainingOptions& options) {
      options.ranks.logical_shards = shards;
      options.ranks.bucket_bytes = bucket;
      if (ranks == 1) options.ranks.communicator = nullptr;
    });
    if (begin) begin(*session);
    OrderedRun& run = runs[c.rank()];
    const int own = shards / ranks, rows = kRows / shards;
    for (int u = first; u < last; ++u) {
      const NamedValues batch = model.batch(100 + u);
      for (int i = 0; i < own; ++i) {
        const int shard = c.rank() * own + i;
        const auto loss = session->Step(RowsOf(batch, shard * rows, (shard + 1) * rows));
        ASSERT_TRUE(loss.ok()) << loss.status().ToString();
        if (i + 1 < own) continue;
        EXPECT_EQ(*loss, session->progress().update_loss);
        run.losses.push_back(*loss);
      }
    }
    EXPECT_EQ(session->progress().updates, last);
    if (end) end(*session);
    run.parameters = ParametersOf(*session);
  });
  for (const OrderedRun& run : runs) {
    EXPECT_TRUE(SameBits(run.parameters, runs[0].parameters));
    EXPECT_EQ(run.losses, runs[0].losses);
  }
  return runs[0];
}

void ExpectSameRun(const OrderedRun& got, const OrderedRun& want) {
  EXPECT_EQ(got.losses, want.losses);
  EXPECT_TRUE(SameBits(got.parameters, want.parameters));
}

TEST(OrderedRanks, HaveTheBitsOfOne) {
  const struct {
    NamedModel model;
    RealModel (*make)();
  } cases[] = {
      {kModels[0], Mlp},
      {kModels[0],
       [] {
         RealModel real = Mlp();
         real.options.step.clip_norm = 0.3;
         real.options.threads = 2;
         return real;
       }},
      {kModels[0],
       [] {
         RealModel real = Mlp();
         real.options.step.precision = DType::kBFloat16;
         return real;
       }},
      {kModels[0],
       [] {
         RealModel real = Mlp();
         real.options.step.mean_over = MeanOver::kTokens;
         return real;
       }},
      {kModels[1], DroppingGpt},  // clipped
      {kModels[2], Llama},
  };
  for (const auto& one : cases) {
    SCOPED_TRACE(one.model.name);
    const RealModel real = one.make();
    const OrderedRun want = TrainOrdered(real, one.model, 4, 1, 1000);
    for (const int ranks : {2, 4}) {
      for (const int64_t bucket : {1, 1000, 1 << 30}) {
        SCOPED_TRACE(std::to_string(ranks) + " ranks, buckets of " + std::to_string(bucket));
        ExpectSameRun(TrainOrdered(real, one.model, 4, ranks, bucket), want);
      }
    }
  }
}

// Without the order, ranks differ from one in some bits: the test above can fail.
TEST(OrderedRanks, DifferWithoutTheOrder) {
  RealModel real = Mlp();
  const OrderedRun want = TrainOrdered(real, kModels[0], 12, 1, 1000);
  real.options.step.accumulation_steps = 12;
  const auto session = SessionOf(real);
  for (int u = 0; u < kUpdatesOfRun; ++u) {
    for (int i = 0; i < kRows; ++i)
      ASSERT_TRUE(session->Step(RowsOf(kModels[0].batch(100 + u), i, i + 1)).ok());
  }
  EXPECT_FALSE(SameBits(ParametersOf(*session), want.parameters));
}

// Shards that are no power of two: three ranks sum four each, six sum two each.
TEST(OrderedRanks, AnyNumberTimesAPowerOfTwo) {
  const RealModel real = DroppingGpt();
  const OrderedRun want = TrainOrdered(real, kModels[1], 12, 1, 1000);
  for (const int ranks : {3, 6, 12}) {
    SCOPED_TRACE(ranks);
    ExpectSameRun(TrainOrdered(real, kModels[1], 12, ranks, 1000), want);
  }
}

TEST(OrderedRanks, DoWhatTheWholeBatchDoes) {
  const RealModel real = Llama();
  const OrderedRun ordered = TrainOrdered(real, kModels[2], 4, 2, 1000);
  const auto alone = SessionOf(real);
  for (int u = 0; u < kUpdatesOfRun; ++u) {
    const double loss = alone->Step(kModels[2].batch(100 + u)).value();
    EXPECT_NEAR(ordered.losses[u], loss, 1e-5 * loss);
  }
}

TEST(OrderedRanks, GoOnFromTheCheckpointOfAnotherNumber) {
  const TemporaryFolder folder;
  const RealModel real = DroppingGpt();
  const OrderedRun want = TrainOrdered(real, kModels[1], 4, 1, 1000);
  int first = 0;
  for (const auto& [ranks, last] :
       {std::pair{4, 5}, std::pair{1, 9}, std::pair{2, 14}, std::pair{4, kUpdatesOfRun}}) {
    const auto path = [&](int update) { return folder.path("at" + std::to_string(update)); };
    const OrderedRun run = TrainOrdered(
        real, kModels[1], 4, ranks, 1000,
        [&](TrainingSession& session) {
          if (first == 0) return;
          const auto restored = session.Restore(path(first));
          ASSERT_TRUE(restored.ok()) << restored.status().ToString();
        },
        [&](TrainingSession& session) {
          const bool writes = session.ranks().rank() == 0;
          if (writes) {
            ASSERT_TRUE(session.Save(path(session.progress().updates)).ok());
          }
        },
        first, last);
    const std::vector<double> losses(want.losses.begin() + first, want.losses.begin() + last);
    EXPECT_EQ(run.losses, losses);
    if (last == kUpdatesOfRun) {
      EXPECT_TRUE(SameBits(run.parameters, want.parameters));
    }
    first = last;
  }
}

// A run of one rank is also saved between its micro-steps.
TEST(OrderedRanks, OneRankIsSavedAmongItsShards) {
  const TemporaryFolder folder;
  const RealModel real = Mlp();
  std::vector<Values> ends;
  for (const bool saves : {false, true}) {
    auto make = [&] {
      RealModel copy = real.Clone();
      copy.options.ranks.logical_shards = 4;
      return SessionOf(copy);
    };
    auto session = make();
    for (int i = 0; i < 8; ++i) {
      if (saves && i == 6) {
        ASSERT_TRUE(session->Save(folder.path("between")).ok());
        session = make();
        ASSERT_TRUE(session->Restore(folder.path("between")).ok());
        EXPECT_EQ(session->progress().accumulated(), 2);
      }
      ASSERT_TRUE(session->Step(RowsOf(kModels[0].batch(1), i, i + 1)).ok());
    }
    ends.push_back(ParametersOf(*session));
  }
  EXPECT_TRUE(SameBits(ends[0], ends[1]));
  auto ranks = LocalCommunicators(2);
  RunRanks(2, [&](Communicator& c) {
    const auto session =
        RankSession(real, c, [](TrainingOptions& options) { options.ranks.logical_shards = 4; });
    EXPECT_THAT(session->Restore(folder.path("between")).status().message(),
                HasSubstr("which several cannot divide"));
    ASSERT_TRUE(session->Step(RowsOf(kModels[0].batch(1), 0, 3)).ok());
    EXPECT_THAT(session->Save(folder.path("now")).message(), HasSubstr("after an update"));
  });
}

// Rank 1 fails at each of its kernels in turn: no rank has changed but in its accumulators, or both
// take the update of the one that has done it. The same ranks go on, to the same bits.
TEST(OrderedRanks, AStepThatFailsOnOneRankHappensOnNone) {
  const RealModel real = Mlp();
  const auto shard = [](const Communicator& c, int i) {
    return RowsOf(kModels[0].batch(2), (2 * c.rank() + i) * 3, (2 * c.rank() + i + 1) * 3);
  };
  Values want;
  int calls = 1, again = 0;
  for (int k = -1; k < calls; ++k) {
    SCOPED_TRACE("call " + std::to_string(k));
    auto others = LocalCommunicators(2);
    std::vector<Values> ends(2);
    std::atomic<int> counted = 0;
    RunRanks(2, [&](Communicator& c) {
      auto provider = std::make_shared<FailingProvider>(TrainingCpu());
      provider->FailAt(-1);
      const auto session = RankSession(real, c, [&](TrainingOptions& options) {
        options.ranks.logical_shards = 4;
        options.providers = {provider};
      });
      const Values before = ParametersOf(*session);
      ASSERT_TRUE(session->Step(shard(c, 0)).ok());
      if (c.rank() == 1)
        counted = static_cast<int>(session->runs().Plan(shard(c, 1)).value()->steps().size());
      provider->FailAt(c.rank() == 1 ? k : -1);
      const auto loss = session->Step(shard(c, 1));
      provider->FailAt(-1);
      const bool lost = !loss.ok() && loss.status().message().find("lost") != std::string::npos;
      EXPECT_TRUE(loss.ok() || lost || SameBits(ParametersOf(*session), before));
      const Status status = session->Regroup(
          std::shared_ptr<Communicator>(others[c.rank()].get(), [](Communicator*) {}));
      ASSERT_TRUE(status.ok()) << status.ToString();
      if (c.rank() == 0 && session->progress().updates == 0) ++again;
      for (int i = 0; session->progress().updates == 0 && i < 2; ++i)
        ASSERT_TRUE(session->Step(shard(c, i)).ok());
      ends[c.rank()] = ParametersOf(*session);
    });
    if (k < 0) want = ends[0];
    calls = counted;
    EXPECT_TRUE(SameBits(ends[0], want));
    EXPECT_TRUE(SameBits(ends[1], want));
  }
  EXPECT_GT(again, 20);
}

TEST(OrderedRanks, OptionsThatDoNotFitAreRefused) {
  const auto refused = [](int ranks, const std::function<void(RealModel&)>& edit) {
    auto all = LocalCommunicators(ranks);
    RealModel real = Mlp();
    real.options.ranks.communicator = std::move(all[0]);
    real.options.ranks.logical_shards = 4;
    real.options.ranks.join = false;  // there is one rank
    edit(real);
    return TrainingSession::Create(std::move(real.model), real.options).status().message();
  };
  EXPECT_THAT(refused(3, [](RealModel&) {}), HasSubstr("expected 3 ranks times a power of two"));
  EXPECT_THAT(refused(2, [](RealModel& r) { r.options.ranks.logical_shards = 12; }),
              HasSubstr("expected 2 ranks times a power of two"));
  EXPECT_THAT(refused(2, [](RealModel& r) { r.options.ranks.logical_shards = -1; }),
              HasSubstr("expected 0"));
  EXPECT_THAT(refused(2, [](RealModel& r) { r.options.step.accumulation_steps = 2; }),
              HasSubstr("logical_shards and accumulation_steps do not go together"));
  EXPECT_THAT(refused(2, [](RealModel& r) { r.options.ranks.shard = 1; }),
              HasSubstr("shard and logical_shards do not go together"));
  EXPECT_THAT(refused(2, [](RealModel& r) { r.options.step.keep_gradients = true; }),
              HasSubstr("keep_gradients"));
  EXPECT_THAT(refused(1, [](RealModel& r) { r.options.step.refuse_nonfinite = true; }),
              HasSubstr("refuse_nonfinite"));
  EXPECT_THAT(refused(1,
                      [](RealModel& r) {
                        r = Digits();
                        r.options.ranks.logical_shards = 4;
                      }),
              HasSubstr("the running statistics ('mean0')"));
}

TEST(OrderedRanks, AnotherNumberOfRanksOrShardsIsRefused) {
  const TemporaryFolder folder;
  const RealModel real = Mlp();
  RunRanks(2, [&](Communicator& c) {
    const auto session =
        RankSession(real, c, [](TrainingOptions& options) { options.ranks.logical_shards = 2; });
    EXPECT_THAT(session->Regroup(nullptr).message(), HasSubstr("divided among 2 ranks"));
    if (c.rank() == 0) {
      ASSERT_TRUE(session->Save(folder.path("two")).ok());
    }
  });
  for (const int shards : {0, 4}) {
    RealModel copy = real.Clone();
    copy.options.ranks.logical_shards = shards;
    EXPECT_THAT(
        SessionOf(copy)->Restore(folder.path("two")).status().message(),
        HasSubstr("of a run with logical_shards = 2, the session has " + std::to_string(shards)));
  }
}

}  // namespace
}  // namespace caesura::testing
