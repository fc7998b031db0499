// SPDX-License-Identifier: Apache-2.0
// Models whose parts on the ranks exchange values: each rank trains its own part of some
// parameters, and all ranks together do what one does with the whole model.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <map>

#include "core/distributed/communicator.h"
#include "graph_transforms/recompute.h"
#include "tests/temporary_folder.h"
#include "tests/training/rank_session.h"

namespace caesura::testing {
namespace {

using ::testing::HasSubstr;

constexpr int kHidden = 16, kBatch = 32;

// The whole model where `ranks` is 1. Otherwise a rank's part: it takes its own rows of x, has its
// own columns of `up` and rows of `down`, and all else as all ranks have it.
RealModel PartModel(int ranks) {
  const std::string hidden = std::to_string(kHidden / ranks);
  const std::string among = " <ranks = " + std::to_string(ranks) + "> ";
  const auto exchange = [&](const char* op_type) {
    return ranks == 1 ? std::string("Identity ") : "ai.caesura." + (op_type + among);
  };
  RealModel out = MakeRealModel(
      "parts (float[batch,12] x, float[12,8] w, float[8," + hidden + "] up, float[" + hidden +
          "] up_bias, float[" + hidden + R"(,10] down, float[10] bias) => (float[rows,10] scores) {
      m = MatMul (x, w) turned = )" +
          exchange("AllToAll") + R"((m) a = Tanh (turned) back = )" + exchange("AllToAll") +
          R"((a) all = )" + exchange("AllGather") + R"((back)
      u = MatMul (all, up) v = Add (u, up_bias) h = Tanh (v) p = MatMul (h, down) own = )" +
          exchange("ReduceScatter") + R"((p) b = Add (own, bias) q = )" + exchange("AllGather") +
          R"((b) r = MatMul (h, down) s = )" + exchange("AllReduce") +
          R"((r) scores = Add (q, s) })",
      1);
  out.options.step.loss = Loss::CrossEntropy("labels");
  out.options.step.optimizer = AdamW{.learning_rate = 1e-2};
  return out;
}

const std::vector<std::string> kParts = {"up", "up_bias", "down"};

// The elements of `whole` that this rank of `size` has: equal parts along `axis`.
Tensor PartAlong(const Tensor& whole, size_t axis, int rank, int size) {
  std::vector<int64_t> dims = whole.shape().dims();
  int64_t outer = 1, inner = 1;
  for (size_t d = 0; d < dims.size(); ++d) {
    if (d < axis) outer *= dims[d];
    if (d > axis) inner *= dims[d];
  }
  dims[axis] /= size;
  Tensor part = Tensor::Zeros(whole.dtype(), Shape(dims));
  const int64_t block = dims[axis] * inner;
  for (int64_t o = 0; o < outer; ++o) {
    for (int64_t e = 0; e < block; ++e)
      part.data<float>()[o * block + e] = whole.data<float>()[(o * size + rank) * block + e];
  }
  return part;
}

Tensor PartOfParameter(const Tensor& whole, const std::string& name, int rank, int size) {
  if (std::count(kParts.begin(), kParts.end(), name) == 0) return whole.Clone().value();
  return PartAlong(whole, name == "up" ? 1 : 0, rank, size);
}

// The model of one rank, with its parts of the whole model's parameters.
RealModel PartOfModel(const RealModel& whole, int rank, int size) {
  RealModel part = PartModel(size);
  for (const char* name : {"w", "up", "up_bias", "down", "bias"}) {
    Graph &graph = *whole.model.graph, &own = *part.model.graph;
    own.SetInitializer(
        own.FindValue(name),
        PartOfParameter(*graph.Initializer(graph.FindValue(name)), name, rank, size));
  }
  part.options.step = whole.options.step;
  part.options.step.rank_parts = kParts;
  return part;
}

NamedValues WholeBatch(uint32_t seed) {
  return RandomBatch(seed, "x", Shape{kBatch, 12}, false, "labels", Shape{kBatch}, 10);
}

// Its own rows of x, and all labels: each rank has the loss of the whole batch.
NamedValues RankBatch(uint32_t seed, const Communicator& c) {
  NamedValues batch = WholeBatch(seed);
  const int64_t rows = kBatch / c.size();
  batch["x"] = RowsOf(batch, rows * c.rank(), rows * (c.rank() + 1)).at("x");
  return batch;
}

struct PartsCase {
  const char* name;
  void (*edit)(StepOptions&);
};
class RankParts : public ::testing::TestWithParam<PartsCase> {};
INSTANTIATE_TEST_SUITE_P(
    Options, RankParts,
    ::testing::Values(PartsCase{"plain", [](StepOptions&) {}},
                      PartsCase{"clipped", [](StepOptions& o) { o.clip_norm = 0.2; }},
                      PartsCase{"accumulated", [](StepOptions& o) { o.accumulation_steps = 3; }},
                      PartsCase{"momentum",
                                [](StepOptions& o) {
                                  o.optimizer = Sgd{.learning_rate = 0.1, .momentum = 0.9};
                                  o.clip_norm = 0.2;
                                }}),
    [](const auto& info) { return std::string(info.param.name); });

TEST_P(RankParts, DoWhatTheWholeModelDoes) {
  RealModel real = PartModel(1);
  GetParam().edit(real.options.step);
  constexpr int kSteps = 12;
  const auto alone = SessionOf(real);
  std::vector<double> losses;
  for (int s = 0; s < kSteps; ++s) losses.push_back(alone->Step(WholeBatch(s)).value());
  for (const int size : {2, 4}) {
    SCOPED_TRACE(std::to_string(size) + " ranks");
    RunRanks(size, [&](Communicator& c) {
      const auto session = RankSession(PartOfModel(real, c.rank(), size), c);
      for (int s = 0; s < kSteps; ++s) {
        const Result<double> loss = session->Step(RankBatch(s, c));
        ASSERT_TRUE(loss.ok()) << loss.status().ToString();
        EXPECT_NEAR(*loss, losses[s], 1e-5 * losses[s]) << "step " << s;
      }
      Values got, want;
      for (const char* name : {"w", "up", "up_bias", "down", "bias"}) {
        got.push_back(session->parameters().Get(name).value());
        want.push_back(
            PartOfParameter(alone->parameters().Get(name).value(), name, c.rank(), size));
      }
      ExpectCloseValues(got, want, 1e-5);
    });
  }
}

// Writes down what passes.
class Recorder : public Communicator {
 public:
  explicit Recorder(Communicator& to) : to_(to) {}
  std::string name() const override { return to_.name(); }
  int rank() const override { return to_.rank(); }
  int size() const override { return to_.size(); }
  Result<std::unique_ptr<Work>> Start(const Collective& collective) override {
    started.push_back(collective.ToString());
    return to_.Start(collective);
  }
  void Abort(const std::string& why) override { to_.Abort(why); }

  std::vector<std::string> started;

 private:
  Communicator& to_;
};

TEST(RankPartsOrder, RanksStartTheSameCollectivesInOneOrder) {
  const RealModel real = PartModel(1);
  std::vector<std::vector<std::string>> started(2);
  RunRanks(2, [&](Communicator& c) {
    Recorder recorder(c);
    const auto session = RankSession(PartOfModel(real, c.rank(), 2), recorder);
    ASSERT_TRUE(session->Step(RankBatch(1, c)).ok());
    started[c.rank()] = recorder.started;
  });
  EXPECT_EQ(started[0], started[1]);
  std::map<std::string, int> exchanges;
  for (const std::string& text : started[0]) ++exchanges[text.substr(0, text.find(' '))];
  EXPECT_EQ(exchanges["all_to_all"], 4);      // two in the forward, two in the backward
  EXPECT_EQ(exchanges["reduce_scatter"], 3);  // one in the forward, of two gathers the gradients
}

TEST(RankPartsOrder, NoExchangeIsDoneAgainToSaveMemory) {
  const RealModel real = PartModel(1);
  RunRanks(2, [&](Communicator& c) {
    const auto session = RankSession(PartOfModel(real, c.rank(), 2), c);
    const auto plan = session->runs().Plan(RankBatch(1, c)).value();
    const std::vector<std::string> again = FindKeptNodes(*plan).nodes;
    EXPECT_FALSE(again.empty());
    int exchanges = 0;
    for (const auto& node : plan->graph().nodes()) {
      const bool exchanges_here = node->Is("AllGather", kCaesuraDomain) ||
                                  node->Is("AllToAll", kCaesuraDomain) ||
                                  node->Is("AllReduce", kCaesuraDomain);
      exchanges += exchanges_here;
      EXPECT_FALSE(exchanges_here &&
                   std::find(again.begin(), again.end(), node->name()) != again.end());
    }
    EXPECT_GT(exchanges, 5);
  });
}

TEST(RankPartsFailure, ALostRankIsAnErrorWithinTheForward) {
  const RealModel real = PartModel(1);
  RunRanks(2, [&](Communicator& c) {
    const auto session = RankSession(
        PartOfModel(real, c.rank(), 2), c,
        [](TrainingOptions& options) { options.ranks.timeout = std::chrono::milliseconds(200); });
    ASSERT_TRUE(session->Step(RankBatch(1, c)).ok());
    const Values before = ParametersOf(*session);
    if (c.rank() == 1) return;
    const Status status = session->Step(RankBatch(2, c)).status();
    EXPECT_EQ(status.code(), StatusCode::kRankFailure) << status.ToString();
    EXPECT_THAT(status.message(), HasSubstr("rank 1 has not come to it"));
    EXPECT_TRUE(SameBits(ParametersOf(*session), before));
  });
}

TEST(RankPartsFailure, RanksOfOtherPartsAreRefused) {
  const RealModel real = PartModel(1);
  RunRanks(2, [&](Communicator& c) {
    RealModel part = PartOfModel(real, c.rank(), 2);
    if (c.rank() == 1) part.options.step.rank_parts.pop_back();
    part.options.ranks.communicator = std::shared_ptr<Communicator>(&c, [](Communicator*) {});
    EXPECT_THAT(TrainingSession::Create(std::move(part.model), part.options).status().message(),
                HasSubstr("rank_parts is "));
  });
}

TEST(RankPartsFailure, OptionsThatDoNotFitAreRefused) {
  const auto refused = [](const std::function<void(TrainingOptions&)>& edit) {
    RealModel part = PartOfModel(PartModel(1), 0, 2);
    auto ranks = LocalCommunicators(2);
    part.options.ranks.communicator = std::move(ranks[0]);
    part.options.ranks.join = false;  // there is one rank
    edit(part.options);
    return TrainingSession::Create(std::move(part.model), part.options).status().message();
  };
  EXPECT_THAT(refused([](TrainingOptions& o) { o.step.optimizer = Muon{}; }),
              HasSubstr("update an element by the whole parameter"));
  EXPECT_THAT(refused([](TrainingOptions& o) { o.ranks.shard = 1; }),
              HasSubstr("rank_parts and shard do not go together"));
  EXPECT_THAT(refused([](TrainingOptions& o) { o.step.rank_parts = {"none"}; }),
              HasSubstr("expected trained parameters, got 'none'"));
}

TEST(RankPartsFailure, NeitherSavedNorRegrouped) {
  const RealModel real = PartModel(1);
  RunRanks(2, [&](Communicator& c) {
    const auto session = RankSession(PartOfModel(real, c.rank(), 2), c);
    const TemporaryFolder folder;
    EXPECT_THAT(session->Save(folder.path("c")).message(), HasSubstr("this rank's part"));
    EXPECT_THAT(session->Regroup(nullptr).message(), HasSubstr("the part of a lost rank is gone"));
  });
}

// Nodes that do not fit the run or their inputs.
TEST(RankPartsFailure, ExchangesThatCannotBeAreRefused) {
  RunRanks(2, [&](Communicator& c) {
    const auto session = RankSession(PartModel(4), c);  // of four ranks
    NamedValues batch = WholeBatch(1);
    batch["x"] = RowsOf(batch, 0, kBatch / 4).at("x");
    EXPECT_THAT(session->Step(batch).status().message(),
                HasSubstr("planned for 4 ranks, and the run has 2"));
  });
  RunRanks(2, [&](Communicator& c) {
    const auto session = RankSession(PartOfModel(PartModel(1), c.rank(), 2), c);
    NamedValues batch = RankBatch(1, c);
    batch["x"] = RowsOf(batch, 0, 5).at("x");
    EXPECT_THAT(session->Step(batch).status().message(),
                HasSubstr("needs a first dim that 2 ranks divide equally, got 5"));
  });
}

}  // namespace
}  // namespace caesura::testing
