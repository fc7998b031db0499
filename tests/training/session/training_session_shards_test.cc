// SPDX-License-Identifier: Apache-2.0
// Optimizer state that is divided among the ranks: the losses and parameters of undivided state.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <mutex>

#include "core/distributed/communicator.h"
#include "tests/core/distributed/faulty_communicator.h"
#include "tests/core/execute/faulty_provider.h"
#include "tests/temporary_folder.h"
#include "tests/training/rank_session.h"
#include "training/files/checkpoint.h"
#include "training/session/rank_group.h"
#include "training/step/gradient_reduction.h"

namespace caesura::testing {
namespace {

using ::testing::HasSubstr;

void Shard(TrainingOptions& options) { options.ranks.shard = 1; }

struct RankEnd {
  std::vector<double> losses;
  Values parameters;
};

// After `updates`; losses and parameters are checked to be the same bits on all ranks.
RankEnd TrainRanks(const RealModel& real, const NamedModel& model, int ranks, int updates,
                   int shard) {
  std::vector<RankEnd> ends(ranks);
  RunRanks(ranks, [&](Communicator& c) {
    const auto session =
        RankSession(real, c, [&](TrainingOptions& options) { options.ranks.shard = shard; });
    RankEnd& own = ends[c.rank()];
    const int steps = std::max(1, real.options.step.accumulation_steps);
    for (int s = 0; s < updates * steps; ++s) {
      const Result<double> loss = session->Step(PartOf(model.batch(100 + s), c));
      ASSERT_TRUE(loss.ok()) << loss.status().ToString();
      if ((s + 1) % steps == 0) own.losses.push_back(*loss);
    }
    own.parameters = ParametersOf(*session);
  });
  for (const RankEnd& end : ends) {
    EXPECT_EQ(end.losses, ends[0].losses);
    EXPECT_TRUE(SameBits(end.parameters, ends[0].parameters));
  }
  return ends[0];
}

// The sums of local ranks have one order, so that all updates without a norm have the same bits.
TEST(Shards, GiveTheBitsOfUndividedState) {
  for (const NamedModel& model : {kModels[0], kModels[1], kModels[3]}) {
    for (const Optimizer& optimizer :
         {Optimizer(AdamW{.learning_rate = 2e-3}), Optimizer(Sgd{.momentum = 0.9}),
          Optimizer(Adam{.amsgrad = true}), Optimizer(Rmsprop{.momentum = 0.5, .centered = true}),
          Optimizer(Adagrad{.initial_accumulator_value = 0.1}), Optimizer(Sgd{})}) {
      RealModel real = model.make();
      real.options.step.optimizer = optimizer;
      real.options.step.clip_norm = 0;
      for (const int ranks : {2, 4}) {
        SCOPED_TRACE(std::string(model.name) + ", optimizer " + std::to_string(optimizer.index()) +
                     ", ranks " + std::to_string(ranks));
        const RankEnd whole = TrainRanks(real, model, ranks, 5, 0);
        const RankEnd divided = TrainRanks(real, model, ranks, 5, 1);
        EXPECT_EQ(divided.losses, whole.losses);
        EXPECT_TRUE(SameBits(divided.parameters, whole.parameters));
      }
    }
  }
}

TEST(Shards, GroupsAndAccumulation) {
  RealModel real = Mlp();
  real.options.step.optimizer = AdamW{.learning_rate = 2e-3};
  real.options.step.groups = {
      {.names = {"b*"}, .learning_rate_scale = 2, .weight_decay = 0.0, .optimizer = {}}};
  real.options.step.accumulation_steps = 3;
  const RankEnd whole = TrainRanks(real, kModels[0], 4, 4, 0);
  const RankEnd divided = TrainRanks(real, kModels[0], 4, 4, 1);
  EXPECT_EQ(divided.losses, whole.losses);
  EXPECT_TRUE(SameBits(divided.parameters, whole.parameters));
}

void ExpectClose(const RankEnd& got, const RankEnd& want, double tolerance) {
  for (size_t u = 0; u < want.losses.size(); ++u)
    EXPECT_NEAR(got.losses[u], want.losses[u], tolerance * std::abs(want.losses[u]));
  for (size_t i = 0; i < want.parameters.size(); ++i) {
    const Tensor &a = got.parameters[i].tensor(), &b = want.parameters[i].tensor();
    for (int64_t e = 0; e < a.elements(); ++e)
      ASSERT_NEAR(a.data<float>()[e], b.data<float>()[e], tolerance) << "parameter " << i;
  }
}

// With 2 the ranks sum the gradients of each micro-step, and then add them up.
TEST(Shards, DividedAccumulators) {
  RealModel real = Mlp();
  real.options.step.optimizer = Sgd{.learning_rate = 0.1, .momentum = 0.9};
  real.options.step.accumulation_steps = 3;
  ExpectClose(TrainRanks(real, kModels[0], 4, 4, 2), TrainRanks(real, kModels[0], 4, 4, 0), 1e-5);
  const TemporaryFolder folder;
  RunRanks(2, [&](Communicator& c) {
    const auto two = [](TrainingOptions& options) { options.ranks.shard = 2; };
    const auto session = RankSession(real, c, two), whole = RankSession(real, c);
    const RankMemory told = session->Memory(), undivided = whole->Memory();
    EXPECT_LT(told.gradients, undivided.gradients);
    const NamedValues part = PartOf(kModels[0].batch(1), c);
    for (int s = 0; s < 4; ++s) ASSERT_TRUE(session->Step(part).ok());
    EXPECT_THAT(session->Save(folder.path("c")).message(), HasSubstr("after an update"));
    for (int s = 0; s < 2; ++s) ASSERT_TRUE(session->Step(part).ok());
    ASSERT_TRUE(session->Save(folder.path("c")).ok());
    const auto other = RankSession(real, c, two);
    for (TrainingSession* again : {whole.get(), other.get()}) {
      const auto restored = again->Restore(folder.path("c"));
      ASSERT_TRUE(restored.ok()) << restored.status().ToString();
      EXPECT_EQ(again->progress().updates, 2);
      EXPECT_TRUE(SameBits(ParametersOf(*again), ParametersOf(*session)));
    }
  });
}

// The norm is that of the parts' norms, whose sum rounds in another order.
TEST(Shards, ClippingAndAScaledLoss) {
  RealModel clipped = CharGpt(), scaled = Mlp(), refusing = Mlp();
  clipped.options.step.clip_norm = 0.3;
  scaled.options.step.precision = DType::kFloat16;
  refusing.options.step.refuse_nonfinite = true;
  refusing.options.step.clip_norm = 0.3;
  for (const auto& [real, model] :
       {std::pair(&clipped, kModels[1]), {&scaled, kModels[0]}, {&refusing, kModels[0]}}) {
    ExpectClose(TrainRanks(*real, model, 4, 5, 1), TrainRanks(*real, model, 4, 5, 0), 1e-5);
  }
}

TEST(Shards, OneRanksOverflowSkipsTheUpdateOnAll) {
  RealModel real = Mlp();
  real.options.step.precision = DType::kFloat16;
  RunRanks(2, [&](Communicator& c) {
    const auto session = RankSession(real, c, Shard);
    const Values before = ParametersOf(*session);
    NamedValues poisoned = PartOf(kModels[0].batch(2), c);
    if (c.rank() == 1) poisoned.find("x")->second.tensor().data<float>()[0] = INFINITY;
    ASSERT_TRUE(session->Step(poisoned).ok());
    EXPECT_EQ(session->progress().updates, 0);
    EXPECT_TRUE(SameBits(ParametersOf(*session), before));
    ASSERT_TRUE(session->Step(PartOf(kModels[0].batch(2), c)).ok());
    EXPECT_EQ(session->progress().updates, 1);
  });
}

// --- checkpoints ---

Checkpoint SavedBy(const RealModel& real, int ranks, int shard, const std::string& path) {
  RunRanks(ranks, [&](Communicator& c) {
    const auto session =
        RankSession(real, c, [&](TrainingOptions& options) { options.ranks.shard = shard; });
    for (uint32_t u = 0; u < 3; ++u)
      ASSERT_TRUE(session->Step(PartOf(kModels[0].batch(u), c)).ok());
    if (shard == 0 && c.rank() > 0) return;
    const Status saved = session->Save(path);
    ASSERT_TRUE(saved.ok()) << saved.ToString();
  });
  return RestoreCheckpoint(path).value();
}

void ExpectSameTensors(const std::map<std::string, Tensor>& got,
                       const std::map<std::string, Tensor>& want) {
  ASSERT_EQ(got.size(), want.size());
  for (const auto& [name, tensor] : want) {
    ASSERT_TRUE(got.count(name)) << name;
    EXPECT_EQ(got.at(name).ToVector<float>(), tensor.ToVector<float>()) << name;
    EXPECT_EQ(got.at(name).shape(), tensor.shape()) << name;
  }
}

TEST(Shards, AnyNumberOfRanksReadsACheckpoint) {
  const TemporaryFolder folder;
  const RealModel real = Mlp();
  const Checkpoint whole = SavedBy(real, 4, 0, folder.path("whole"));
  const Checkpoint divided = SavedBy(real, 4, 1, folder.path("divided"));
  ExpectSameTensors(divided.parameters, whole.parameters);
  ExpectSameTensors(divided.optimizer_state, whole.optimizer_state);
  EXPECT_GT(whole.optimizer_state.size(), 4u);
  for (const int ranks : {1, 2, 3, 4}) {
    std::vector<Values> ends[2];
    for (const int shard : {0, 1}) {
      ends[shard].resize(ranks);
      const std::string again = folder.path("again" + std::to_string(ranks));
      RunRanks(ranks, [&](Communicator& c) {
        const auto session =
            RankSession(real, c, [&](TrainingOptions& options) { options.ranks.shard = shard; });
        ASSERT_TRUE(session->Restore(folder.path("divided")).ok());
        EXPECT_EQ(session->progress().updates, 3);
        if (shard == 1) {
          ASSERT_TRUE(session->Save(again).ok());
        }
        ASSERT_TRUE(session->Step(PartOf(kModels[0].batch(7), c)).ok());
        ends[shard][c.rank()] = ParametersOf(*session);
      });
      if (shard == 1)
        ExpectSameTensors(RestoreCheckpoint(again)->optimizer_state, whole.optimizer_state);
    }
    EXPECT_TRUE(SameBits(ends[0][0], ends[1][0])) << ranks << " ranks";
  }
}

TEST(Shards, AFileThatCannotBeWrittenIsAnErrorOnAllRanks) {
  const TemporaryFolder folder;
  const RealModel real = Mlp();
  RunRanks(2, [&](Communicator& c) {
    const auto session = RankSession(real, c, Shard);
    EXPECT_FALSE(session->Save(folder.path("no/such/folder")).ok());
    ASSERT_TRUE(session->Step(PartOf(kModels[0].batch(1), c)).ok());
  });
}

// Whatever call of a Save fails on a rank: the others learn of it, and do not wait for it.
TEST(Shards, ARankThatFailsInASaveTellsTheOthers) {
  const TemporaryFolder folder;
  int events = 0;  // of a Save
  for (int event = -1; event < events; ++event) {
    RunRanks(2, [&](Communicator& inner) {
      FaultyCommunicator c(inner);
      const auto session = RankSession(Mlp(), c, Shard);
      const bool breaks = c.rank() == 1;
      c.At(breaks ? event : -1, [](const Collective&) { return RankFailure("planted"); });
      const Status saved = session->Save(folder.path("c"));
      if (event < 0) {
        EXPECT_TRUE(saved.ok()) << saved.ToString();
        if (breaks) events = c.events();
      } else if (breaks || !saved.ok()) {
        EXPECT_THAT(saved.message(), HasSubstr("planted")) << "event " << event;
      }
    });
  }
  EXPECT_GT(events, 6);
}

TEST(Shards, StateOfOneParameterIsNowhere) {
  RealModel real = Mlp();
  real.options.step.optimizer = AdamW{};
  RunRanks(2, [&](Communicator& c) {
    const auto session = RankSession(real, c, Shard);
    const std::string name = "optimizer.exp_avg." + session->parameters().Names().front();
    const auto got = session->parameters().Get(name);
    ASSERT_FALSE(got.ok());
    EXPECT_THAT(got.status().message(), HasSubstr("Save gathers it"));
    const Tensor value = Tensor::Zeros(DType::kFloat32, Shape{1});
    EXPECT_THAT(session->parameters().Set(name, value).message(),
                HasSubstr("divided among 2 ranks"));
    EXPECT_THAT(session->parameters().Bind(name, value).message(),
                HasSubstr("divided among 2 ranks"));
  });
}

// --- memory ---

RealModel WideMlp() {
  RealModel real = MakeRealModel(R"(net (float[batch,64] x, float[64,512] w0, float[512] b0,
      float[512,512] w1, float[512] b1, float[512,512] w2, float[512] b2, float[512,10] w3)
      => (float[batch,10] scores) {
    h0 = MatMul (x, w0)
    a0 = Add (h0, b0)
    r0 = Relu (a0)
    h1 = MatMul (r0, w1)
    a1 = Add (h1, b1)
    r1 = Relu (a1)
    h2 = MatMul (r1, w2)
    a2 = Add (h2, b2)
    r2 = Relu (a2)
    scores = MatMul (r2, w3)
  })",
                                 1);
  real.options.step.loss = Loss::CrossEntropy("labels");
  real.options.step.optimizer = AdamW{};
  return real;
}

TEST(Shards, MemoryIsToldBeforeTheFirstStepAndKept) {
  const RealModel real = WideMlp();
  constexpr int64_t kBucket = 1 << 18;
  RunRanks(4, [&](Communicator& c) {
    const auto session = RankSession(real, c, [](TrainingOptions& options) {
      options.ranks.shard = 1;
      options.ranks.bucket_bytes = kBucket;
    });
    const RankMemory told = session->Memory();
    size_t count = 0, largest = 0;
    for (const std::string& name : session->parameters().Names()) {
      const Tensor tensor = session->parameters().Get(name).value();
      count += static_cast<size_t>(tensor.elements());
      largest = std::max(largest, tensor.bytes());
    }
    EXPECT_EQ(told.parameters, 4 * count);
    EXPECT_LE(static_cast<double>(told.optimizer_state), 2.01 * static_cast<double>(count));
    const size_t bucket = largest + kBucket;
    EXPECT_LE(static_cast<double>(told.total()), 7.07 * static_cast<double>(count) + 2 * bucket);
    const NamedValues batch = RandomBatch(1, "x", Shape{1, 64}, false, "labels", Shape{1}, 10);
    const size_t arena = session->runs().Plan(batch).value()->arena_bytes();
    // A batch of one row: what is not gradients is small. One gradient more is about to be summed.
    EXPECT_LE(static_cast<double>(arena),
              1.01 * static_cast<double>(told.gradients + largest) + 65536);
  });
}

// --- ranks that are lost, late or others ---

TEST(Shards, AStepThatFailsBeforeTheAgreementChangesNothingAndIsDoneAgain) {
  const RealModel real = Mlp();
  auto again = LocalCommunicators(2);
  std::vector<Values> ends(2);
  RunRanks(2, [&](Communicator& c) {
    auto provider = std::make_shared<FailingProvider>(TrainingCpu());
    provider->FailAt(-1);
    const auto session = RankSession(real, c, [&](TrainingOptions& options) {
      options.ranks.shard = 1;
      options.providers = {provider};
    });
    ASSERT_TRUE(session->Step(PartOf(kModels[0].batch(1), c)).ok());
    const Values before = ParametersOf(*session);
    provider->FailAt(c.rank() == 1 ? 5 : -1);
    ASSERT_FALSE(session->Step(PartOf(kModels[0].batch(2), c)).ok());
    provider->FailAt(-1);
    EXPECT_TRUE(SameBits(ParametersOf(*session), before));
    const Status regrouped = session->Regroup(
        std::shared_ptr<Communicator>(again[c.rank()].get(), [](Communicator*) {}));
    ASSERT_TRUE(regrouped.ok()) << regrouped.ToString();
    ASSERT_TRUE(session->Step(PartOf(kModels[0].batch(2), c)).ok());
    ends[c.rank()] = ParametersOf(*session);
  });
  EXPECT_TRUE(SameBits(ends[0], ends[1]));
  RunRanks(2, [&](Communicator& c) {
    const auto session = RankSession(real, c, Shard);
    for (const uint32_t seed : {1, 2})
      ASSERT_TRUE(session->Step(PartOf(kModels[0].batch(seed), c)).ok());
    EXPECT_TRUE(SameBits(ParametersOf(*session), ends[0]));
  });
}

// Rank 1 fails at each of its kernels in turn. Each rank has changed nothing, or has done the step,
// or says that it is lost, which undo rules out; the two go on only where both have done the same.
class ShardFailures : public ::testing::TestWithParam<bool> {};
INSTANTIATE_TEST_SUITE_P(Undo, ShardFailures, ::testing::Bool());

TEST_P(ShardFailures, LeaveNoMixture) {
  const bool undo = GetParam();
  const RealModel real = Mlp();
  int calls = 1, gone_on = 0, refused = 0;
  for (int k = 0; k < calls; ++k) {
    SCOPED_TRACE("call " + std::to_string(k));
    auto again = LocalCommunicators(2);
    std::vector<Values> ends(2);
    std::vector<Status> regrouped(2);
    std::atomic<int> counted = 0;
    RunRanks(2, [&](Communicator& c) {
      auto provider = std::make_shared<FailingProvider>(TrainingCpu());
      provider->FailAt(-1);
      const auto session = RankSession(real, c, [&](TrainingOptions& options) {
        options.ranks.shard = 1;
        options.providers = {provider};
        options.undo = undo;
      });
      const NamedValues batch = PartOf(kModels[0].batch(2), c);
      ASSERT_TRUE(session->Step(PartOf(kModels[0].batch(1), c)).ok());
      if (c.rank() == 1)
        counted = static_cast<int>(session->runs().Plan(batch).value()->steps().size());
      const Values before = ParametersOf(*session);
      provider->FailAt(c.rank() == 1 ? k : -1);
      const auto loss = session->Step(batch);
      provider->FailAt(-1);
      const bool lost = !loss.ok() && loss.status().message().find("lost") != std::string::npos;
      EXPECT_FALSE(undo && lost) << loss.status().ToString();
      EXPECT_TRUE(loss.ok() || lost || SameBits(ParametersOf(*session), before));
      regrouped[c.rank()] = session->Regroup(
          std::shared_ptr<Communicator>(again[c.rank()].get(), [](Communicator*) {}));
      ends[c.rank()] = ParametersOf(*session);
    });
    calls = counted;
    EXPECT_EQ(regrouped[0].ok(), regrouped[1].ok());
    if (regrouped[0].ok()) {
      EXPECT_TRUE(SameBits(ends[0], ends[1]));
      ++gone_on;
    } else {
      EXPECT_THAT(regrouped[0].message(), HasSubstr("Restore the last checkpoint"));
      ++refused;
    }
  }
  EXPECT_GT(gone_on, 10);
  // With undo it depends on time: rank 0 has ended the step, or rank 1's failure has undone it
  // there.
  if (!undo) {
    EXPECT_GT(refused, 0);
  }
}

TEST(Shards, FewerRanksNeedTheCheckpoint) {
  const RealModel real = Mlp();
  auto fewer = LocalCommunicators(2);
  RunRanks(3, [&](Communicator& c) {
    const auto session = RankSession(real, c, Shard);
    ASSERT_TRUE(session->Step(PartOf(kModels[0].batch(1), c)).ok());
    if (c.rank() == 2) return;
    const Status status = session->Regroup(
        std::shared_ptr<Communicator>(fewer[c.rank()].get(), [](Communicator*) {}));
    EXPECT_EQ(status.code(), StatusCode::kInvalidArgument);
    EXPECT_THAT(status.message(), HasSubstr("divided among 3 ranks"));
    EXPECT_THAT(status.message(), HasSubstr("Restore the last checkpoint"));
    EXPECT_EQ(session->Regroup(nullptr).code(), StatusCode::kInvalidArgument);
  });
}

TEST(Shards, RanksThatHaveChangedPlacesAreRefused) {
  const RealModel real = Mlp();
  auto again = LocalCommunicators(2);
  RunRanks(2, [&](Communicator& c) {
    const auto session = RankSession(real, c, Shard);
    ASSERT_TRUE(session->Step(PartOf(kModels[0].batch(1), c)).ok());
    const Status status = session->Regroup(
        std::shared_ptr<Communicator>(again[1 - c.rank()].get(), [](Communicator*) {}));
    EXPECT_THAT(status.message(), HasSubstr("has the part of another rank"));
  });
}

TEST(Shards, OptionsThatDoNotFitAreRefused) {
  const auto refused = [](const std::function<void(TrainingOptions&)>& edit) {
    auto ranks = LocalCommunicators(2);
    RealModel real = Mlp();
    real.options.ranks.communicator = std::move(ranks[0]);
    real.options.ranks.shard = 1;
    real.options.ranks.join = false;  // there is one rank
    edit(real.options);
    return TrainingSession::Create(std::move(real.model), real.options).status().message();
  };
  for (const Optimizer& optimizer : {Optimizer(Adafactor{}), Optimizer(Muon{}), Optimizer(Lamb{}),
                                     Optimizer(NAdam{}), Optimizer(Asgd{})}) {
    EXPECT_THAT(refused([&](TrainingOptions& o) { o.step.optimizer = optimizer; }),
                HasSubstr("cannot be divided"));
  }
  EXPECT_THAT(refused([](TrainingOptions& o) { o.step.keep_gradients = true; }),
              HasSubstr("shard and keep_gradients do not go together"));
  EXPECT_THAT(refused([](TrainingOptions& o) { o.ranks.shard = 3; }), HasSubstr("fully_shard"));
  EXPECT_THAT(refused([](TrainingOptions& o) { o.ranks.shard = -1; }), HasSubstr("expected 0"));
}

TEST(Shards, OfOneRankAreWhole) {
  RealModel real = Mlp();
  real.options.ranks.shard = 1;
  RealModel copy = real.Clone();
  const auto session = TrainingSession::Create(std::move(copy.model), copy.options).value();
  ASSERT_TRUE(session->Step(kModels[0].batch(1)).ok());
}

}  // namespace
}  // namespace caesura::testing
