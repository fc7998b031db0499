// SPDX-License-Identifier: Apache-2.0
// The facts that the ranks of sessions compare, and steps that they refuse: these change nothing,
// also among micro-steps.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/training/rank_session.h"

namespace caesura::testing {
namespace {

using ::testing::HasSubstr;

void ExpectNotMade(const RealModel& real, const std::function<void(RealModel&)>& spoil,
                   const std::string& words) {
  RunRanks(2, [&](Communicator& c) {
    RealModel own = real.Clone();
    if (c.rank() == 1) spoil(own);
    own.options.ranks.communicator = std::shared_ptr<Communicator>(&c, [](Communicator*) {});
    const auto session = TrainingSession::Create(std::move(own.model), own.options);
    EXPECT_THAT(session.status().message(), HasSubstr(words));
  });
}

TEST(RankFacts, OfModelsAndOptions) {
  RealModel grouped = Mlp();
  grouped.options.step.groups = {{.names = {"w0"}}};
  ExpectNotMade(
      grouped, [](RealModel& m) { m.options.step.groups[0].learning_rate_scale = 2; },
      "the scale of the rate of group 0 is 1 on rank 0, 2 on rank 1");
  ExpectNotMade(
      Mlp(), [](RealModel& m) { m.options.step.loss.ignore_index = 3; },
      "the class that the loss ignores is -100 on rank 0, 3 on rank 1");
  // The same ops in the same order, which read other values.
  const auto model = [](const char* nodes) {
    return MakeRealModel(
        std::string("net (float[batch,3] x, float[3,3] w) => (float[batch,3] s) {") +
            "m = MatMul (x, w) t = Tanh (m) " + nodes + "}",
        1);
  };
  RealModel real = model("s = Sub (t, x)");
  real.options.step.loss = Loss::CrossEntropy("labels");
  ExpectNotMade(
      real, [&](RealModel& m) { m.model = model("s = Sub (x, t)").model; },
      "node 2 of the model is Sub");
}

// A step that is refused as the rate of rank 1 differs has changed nothing, and is done once it
// does not.
void ExpectRefusedWhole(RealModel real, int micro_steps) {
  RunRanks(2, [&](Communicator& c) {
    const auto session = RankSession(real, c);
    const NamedValues batch = PartOf(kModels[0].batch(1), c);
    for (int m = 0; m + 1 < micro_steps; ++m) ASSERT_TRUE(session->Step(batch).ok());
    const ParameterSet& set = session->parameters().set();
    Values before;
    for (int i = 0; i < set.size(); ++i) before.push_back(set.tensor(i).Clone().value());
    const double rate = session->progress().base_rate;
    if (c.rank() == 1) session->runs().set_learning_rate(2 * rate);
    const Status status = session->Step(batch).status();
    EXPECT_THAT(status.message(), HasSubstr("learning_rate is "));
    EXPECT_FALSE(session->parameters().lost()) << status.ToString();
    for (int i = 0; i < set.size(); ++i)
      EXPECT_TRUE(SameBits(RuntimeValue(set.tensor(i)), before[i])) << set.name(i);
    session->runs().set_learning_rate(rate);
    EXPECT_TRUE(session->Step(batch).ok());
  });
}

TEST(RankFacts, RefusedStepsChangeNothing) {
  // Sums of gradients that are sized at run time: rows that values choose.
  RealModel expert = MakeRealModel(R"(net (float[batch,12] x, float[12,10] w, float[10,10] we)
      => (float[batch,10] scores) <int64[1] rows = {0}, int64[1] columns = {1}, float level = {0}> {
    h = MatMul (x, w)
    gate = ReduceMean <keepdims = 0> (h, columns)
    chosen = Greater (gate, level)
    taken = Compress <axis = 0> (h, chosen)
    e = MatMul (taken, we)
    sum = ReduceSum <keepdims = 1> (e, rows)
    scores = Add (h, sum)
  })",
                                   1);
  expert.options.step.loss = Loss::CrossEntropy("labels");
  expert.options.step.accumulation_steps = 2;
  ExpectRefusedWhole(expert.Clone(), 2);
  // Statistics that each rank has for itself.
  RealModel normalizes = MakeRealModel(R"(net (float[batch,12] x, float[12,10] w, float[10] scale,
      float[10] shift, float[10] mean, float[10] var) => (float[batch,10] scores) {
    h = MatMul (x, w)
    scores = BatchNormalization (h, scale, shift, mean, var)
  })",
                                       1);
  normalizes.options.step.loss = Loss::CrossEntropy("labels");
  normalizes.options.ranks.broadcast_buffers = false;
  ExpectRefusedWhole(normalizes.Clone(), 1);
  RealModel early = normalizes.Clone();
  early.options.step.commit = CommitMode::kEagerConsume;
  ExpectRefusedWhole(early.Clone(), 1);
  // Micro-steps that exchange: the first one is compared, too.
  normalizes.options.ranks.shard = 2;
  normalizes.options.step.accumulation_steps = 2;
  ExpectRefusedWhole(normalizes.Clone(), 1);
}

TEST(RankFacts, OtherNumbersOfMicroStepsWhereTheCallerDecides) {
  RealModel real = Mlp();
  real.options.step.accumulation_steps = 0;
  RunRanks(2, [&](Communicator& c) {
    const auto session = RankSession(real, c);
    const NamedValues batch = PartOf(kModels[0].batch(1), c);
    for (int m = 0; m <= c.rank(); ++m) ASSERT_TRUE(session->Accumulate(batch).ok());
    const Status status = session->Step(batch).status();
    EXPECT_EQ(status.code(), StatusCode::kInvalidArgument);
    EXPECT_THAT(status.message(), HasSubstr("the number of micro-steps is 2 to this update on rank "
                                            "0, 3 to this update on rank 1"));
    if (c.rank() == 0) {
      ASSERT_TRUE(session->Accumulate(batch).ok());
    }
    EXPECT_TRUE(session->Step(batch).ok());
  });
  // A mean over tokens takes any: all ranks' sums say how many.
  real.options.step.mean_over = MeanOver::kTokens;
  std::vector<Values> ends(2);
  RunRanks(2, [&](Communicator& c) {
    const auto session = RankSession(real, c);
    const NamedValues batch = PartOf(kModels[0].batch(1), c);
    for (int m = 0; m < c.rank(); ++m) ASSERT_TRUE(session->Accumulate(batch).ok());
    ASSERT_TRUE(session->Step(batch).ok());
    ends[c.rank()] = ParametersOf(*session);
  });
  EXPECT_TRUE(SameBits(ends[0], ends[1]));
}

}  // namespace
}  // namespace caesura::testing
