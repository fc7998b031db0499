// SPDX-License-Identifier: Apache-2.0
// The table of training options; and all pairs of them, on one rank and on two: a session trains,
// or is refused as the table's conflicts say.
#include "training/session/option_table.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <map>
#include <mutex>
#include <set>

#include "core/onnx/model_reader.h"
#include "tests/core/distributed/rank_threads.h"
#include "training/session/rank_group.h"
#include "training/session/training_session.h"
#include "training/step/loss.h"

namespace caesura::testing {
namespace {

using ::testing::HasSubstr;

TEST(OptionTableTest, EachRowHasAnotherValueThatIsSet) {
  std::set<std::string> names;
  for (const TrainingOption& row : TrainingOptionTable()) {
    EXPECT_TRUE(names.insert(row.name).second) << row.name;
    EXPECT_EQ(row.sentence.back(), '.') << row.name;
    EXPECT_EQ(row.initial().index(), row.other.index()) << row.name;
    EXPECT_NE(row.initial(), row.other) << row.name;
    TrainingOptions options;
    ASSERT_TRUE(SetOption(row.name, row.other, &options).ok()) << row.name;
    for (const TrainingOption& one : TrainingOptionTable())
      EXPECT_EQ(one.get(options), one.name == row.name ? row.other : one.initial()) << one.name;
  }
}

TEST(OptionTableTest, ValuesAreChecked) {
  TrainingOptions options;
  EXPECT_EQ(SetOption("clip", 1.0, &options).code(), StatusCode::kNotFound);
  EXPECT_THAT(SetOption("clip_norm", true, &options).message(),
              HasSubstr("clip_norm: expected float, got bool"));
  EXPECT_THAT(SetOption("threads", int64_t{1} << 40, &options).message(),
              HasSubstr("threads: 1099511627776 is out of range"));
  EXPECT_THAT(SetOption("memory_budget", int64_t{-1}, &options).message(),
              HasSubstr("memory_budget: -1 is out of range"));
  EXPECT_THAT(SetOption("precision", std::string("fp8"), &options).message(),
              HasSubstr("precision 'fp8' is none of fp32, bf16, fp16"));
  ASSERT_TRUE(SetOption("seed", int64_t{-1}, &options).ok());
  EXPECT_EQ(options.seed, ~uint64_t{0});
}

constexpr char kTwoWeights[] = R"(<ir_version: 10, opset_import: ["": 21]>
net (float[N,2] x) => (float[N,2] y)
<float[2,2] w = {0.5, -0.25, 0.125, 1}, float[2] b = {1, 2}> {
  product = MatMul (x, w)
  y = Add (product, b)
})";

// Eight steps; empty, or the message that a session or a step was refused by.
std::string Train(TrainingOptions options, Communicator* communicator, std::vector<float>* end) {
  const Loss loss = options.step.loss;
  const RuntimeValue target = loss.kind == Loss::Kind::kCrossEntropy
                                  ? Tensor::Of<int64_t>({2}, {1, 0})
                                  : Tensor::Of<float>({2, 2}, {1, 0, 0, 1});
  options.step.optimizer = Adam{.learning_rate = 1e-3};
  if (communicator != nullptr) {
    options.ranks.communicator = std::shared_ptr<Communicator>(communicator, [](Communicator*) {});
    options.ranks.timeout = std::chrono::seconds(20);
  }
  auto made = TrainingSession::Create(ParseModelText(kTwoWeights).value(), std::move(options));
  if (!made.ok()) return made.status().message();
  TrainingSession& session = **made;
  const std::vector<LossTerm> terms = LossTerms(loss).value();
  for (int step = 0; step < 8; ++step) {
    const auto base = static_cast<float>(step + session.ranks().rank());
    NamedValues feeds = {{"x", Tensor::Of<float>({2, 2}, {base, 1, -1, 2})}};
    for (const LossTerm& term : terms) feeds[term.target] = target;
    const Result<double> value = session.Step(feeds);
    if (!value.ok()) return value.status().message();
    EXPECT_TRUE(std::isfinite(*value));
  }
  *end = session.parameters().Get("w")->ToVector<float>();
  return {};
}

// On `ranks` threads; all of them are refused alike, or end with the same parameters.
std::string TrainOnRanks(const TrainingOptions& options, int ranks) {
  if (ranks == 1) {
    std::vector<float> end;
    return Train(options, nullptr, &end);
  }
  std::mutex mutex;
  std::set<std::string> said;
  std::set<std::vector<float>> ends;
  RunRanks(ranks, [&](Communicator& c) {
    std::vector<float> end;
    const std::string message = Train(options, &c, &end);
    const std::lock_guard lock(mutex);
    said.insert(message);
    ends.insert(end);
  });
  EXPECT_EQ(said.size(), 1u) << *said.begin() << "\nand\n" << *said.rbegin();
  if (options.step.rank_parts.empty()) {
    EXPECT_EQ(ends.size(), 1u);
  }
  return *said.begin();
}

void TryAllPairs(int ranks) {
  const auto& table = TrainingOptionTable();
  std::set<std::string> refused_alone;
  for (const TrainingOption& row : table) {
    TrainingOptions options;
    ASSERT_TRUE(row.set(row.other, &options).ok());
    const std::string said = TrainOnRanks(options, ranks);
    if (said.empty()) continue;
    EXPECT_THAT(said, HasSubstr(row.name));
    refused_alone.insert(row.name);
  }
  int trained = 0, refused = 0;
  for (size_t i = 0; i < table.size(); ++i) {
    for (size_t j = i + 1; j < table.size(); ++j) {
      if (refused_alone.count(table[i].name) || refused_alone.count(table[j].name)) continue;
      TrainingOptions options;
      ASSERT_TRUE(table[i].set(table[i].other, &options).ok());
      ASSERT_TRUE(table[j].set(table[j].other, &options).ok());
      const std::string said = TrainOnRanks(options, ranks);
      ++(said.empty() ? trained : refused);
      EXPECT_EQ(said, CheckConflicts(options, ranks > 1).message())
          << table[i].name << " and " << table[j].name;
    }
  }
  std::printf("%d pairs train, %d are refused, %zu options by themselves\n", trained, refused,
              refused_alone.size());
  EXPECT_GT(trained, 200);
}

TEST(OptionTableTest, EachConflictIsRefused) {
  for (const OptionConflict& conflict : OptionConflicts()) {
    const OptionUse* uses[] = {&conflict.one, &conflict.other};
    TrainingOptions both;
    for (const OptionUse* use : uses) {
      TrainingOptions alone;
      EXPECT_FALSE(use->in(alone)) << use->option;
      ASSERT_TRUE(SetOption(use->option, use->example, &alone).ok()) << use->option;
      EXPECT_TRUE(use->in(alone)) << use->option;
      EXPECT_TRUE(CheckConflicts(alone, true).ok()) << use->option;
      ASSERT_TRUE(SetOption(use->option, use->example, &both).ok());
    }
    const Status status = CheckConflicts(both, true, [](const std::string& o) { return "--" + o; });
    EXPECT_EQ(status.code(), conflict.code);
    EXPECT_THAT(status.message(), HasSubstr("--" + conflict.one.option));
    EXPECT_THAT(status.message(), HasSubstr("--" + conflict.other.option));
    EXPECT_THAT(status.message(), HasSubstr("do not go together: " + conflict.reason));
    EXPECT_EQ(CheckConflicts(both, false).ok(), conflict.among_ranks);
    const std::string said = TrainOnRanks(both, conflict.among_ranks ? 2 : 1);
    EXPECT_EQ(said, CheckConflicts(both, conflict.among_ranks).message());
  }
}

TEST(OptionTableTest, AllPairsOnOneRank) { TryAllPairs(1); }
TEST(OptionTableTest, AllPairsOnTwoRanks) { TryAllPairs(2); }

}  // namespace
}  // namespace caesura::testing
