// SPDX-License-Identifier: Apache-2.0
// Ranks whose models use different parameters of one step (StepOptions::skips_unused).
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/training/rank_heads.h"

namespace caesura::testing {
namespace {

using ::testing::HasSubstr;

// One rank alone makes this of the parameter, with half the rate.
std::vector<float> HalfStep(const std::string& head, uint32_t seed, const std::string& name) {
  RealModel real = HeadModel(head);
  real.options.step.optimizer = Sgd{.learning_rate = 0.05};
  real.options.step.trainable = {"body", head};
  const auto session = SessionOf(real);
  EXPECT_TRUE(session->Step(HeadBatch(seed)).ok());
  const Tensor value = session->parameters().Get(name).value();
  return {value.data<float>(), value.data<float>() + value.elements()};
}

TEST(RankUses, WhatOneRankDoesNotUseIsZeroInTheMean) {
  const RealModel real = HeadModel("a");
  RunRanks(2, [&](Communicator& c) {
    const std::string own = c.rank() == 0 ? "a" : "b";
    const auto session = HeadSession(own, c);
    ASSERT_TRUE(session->Step(HeadBatch(c.rank())).ok());
    const auto values = TensorsOf(*session);
    const auto expect = [&](const std::string& name, const std::vector<float>& want) {
      for (size_t i = 0; i < want.size(); ++i)
        ASSERT_NEAR(values.at(name).data<float>()[i], want[i], 1e-6) << name;
    };
    expect("a", HalfStep("a", 0, "a"));
    expect("b", HalfStep("b", 1, "b"));
    const Tensor& before = *real.model.graph->Initializer(real.model.graph->FindValue("body"));
    std::vector<float> both = HalfStep("a", 0, "body"), other = HalfStep("b", 1, "body");
    for (size_t i = 0; i < both.size(); ++i) both[i] += other[i] - before.data<float>()[i];
    expect("body", both);
  });
}

TEST(RankUses, WhatNoRankUsesStaysWithItsState) {
  for (const int shard : {0, 1, 2}) {
    std::vector<std::map<std::string, Tensor>> ends(2);
    RunRanks(2, [&](Communicator& c) {
      const auto session = HeadSession(c.rank() == 0 ? "a" : "b", c, [&](TrainingOptions& options) {
        options.step.optimizer = AdamW{.learning_rate = 1e-2};
        options.step.clip_norm = 0.1;
        options.ranks.shard = shard;
      });
      const auto before = TensorsOf(*session);
      ASSERT_TRUE(session->Step(HeadBatch(c.rank())).ok());
      for (const auto& [name, value] : TensorsOf(*session)) {
        const std::string of = name.substr(name.rfind('.') + 1);  // a parameter or a bucket
        const bool is_idle = of == "c" || of == "bucket_1";
        EXPECT_EQ(SameBits(Values{value}, Values{before.at(name)}), is_idle) << name;
      }
      EXPECT_TRUE(session->ranks().used(1) && session->ranks().used(2));
      EXPECT_FALSE(session->ranks().used(3));
      ends[c.rank()] = TensorsOf(*session);
    });
    for (const std::string& name : kHeadNames)
      EXPECT_TRUE(SameBits(Values{ends[0].at(name)}, Values{ends[1].at(name)})) << name;
  }
}

TEST(RankUses, NeedBucketsOfAllParametersAndLateCommit) {
  const auto status = [](const std::function<void(TrainingOptions&)>& edit) {
    std::string text;
    RunRanks(2, [&](Communicator& c) {
      RealModel real = HeadModel("a");
      real.options.ranks.communicator = std::shared_ptr<Communicator>(&c, [](Communicator*) {});
      real.options.ranks.join = false;
      real.options.step.skips_unused = true;
      real.options.step.buckets = {{"a", "b"}, {"c", "body"}};
      edit(real.options);
      const auto session = TrainingSession::Create(std::move(real.model), real.options);
      if (c.rank() == 0) text = session.status().ToString();
    });
    return text;
  };
  EXPECT_THAT(status([](auto& o) { o.step.buckets.clear(); }), HasSubstr("needs buckets"));
  EXPECT_THAT(status([](auto& o) { o.step.buckets.pop_back(); }),
              HasSubstr("expected those of the 4 trained parameters"));
  EXPECT_THAT(status([](auto& o) { o.step.commit = CommitMode::kEagerConsume; }),
              HasSubstr("needs late commit"));
  EXPECT_THAT(status([](auto& o) { o.step.groups.resize(kMostRows + 1, {.names = {"a"}}); }),
              HasSubstr("at most 256 groups"));
}

}  // namespace
}  // namespace caesura::testing
