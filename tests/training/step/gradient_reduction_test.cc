// SPDX-License-Identifier: Apache-2.0
// How gradients are put into buckets, and where collectives stand among the other nodes. Ranks that
// sum are in training_session_ranks_test.cc.
#include "training/step/gradient_reduction.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "core/graph/graph_check.h"
#include "core/onnx/model_reader.h"
#include "core/onnx/inference/shape_inference.h"
#include "graph_transforms/order/collective_order.h"

namespace caesura {
namespace {

using ::testing::ElementsAre;

class GradientReduction : public ::testing::Test {
 protected:
  // Gradients of 16 bytes, e of 8, which are ready in the order d, c, b, a, e; tail is of the
  // backward, too.
  void SetUp() override {
    model_ = ParseModelText(R"(<ir_version: 10, opset_import: ["" : 20, "ai.caesura" : 1]>
        g (float[4] x, float16[4] half) => (float[4] x) {
          d = Neg (x) c = Neg (d) b = Neg (c) a = Neg (b) e = Neg (half) tail = Exp (a) })")
                 .value();
    ASSERT_TRUE(InferShapes(model_).ok());
    for (const char* name : {"a", "b", "c", "d", "e"}) values_.push_back(V(name));
  }
  Value* V(const std::string& name) { return model_.graph->FindValue(name); }
  std::vector<Value**> Gradients() {
    std::vector<Value**> out;
    for (Value*& value : values_) out.push_back(&value);
    return out;
  }
  // Each node by its op, or where it is one of the backward by what it makes.
  std::string Order() {
    std::string out;
    for (const auto& node : model_.graph->nodes()) {
      std::string name = node->output(0)->name();
      if (node->domain() == kCaesuraDomain)
        name = node->op_type() + std::to_string(node->Attr<int64_t>("number", -1));
      out += (out.empty() ? "" : " ") + name;
    }
    return out;
  }
  std::string Ordered(bool early) {
    EXPECT_TRUE(MakeCollectiveOrderPass(early)->Run(model_).ok());
    EXPECT_TRUE(CheckGraph(*model_.graph).ok()) << CheckGraph(*model_.graph).ToString();
    return Order();
  }

  Model model_;
  std::vector<Value*> values_;  // a to e
};

TEST_F(GradientReduction, BucketsAreFilledAsGradientsAreReady) {
  const CollectiveWriter writer(*model_.graph, "cpu");
  const std::vector<int> kinds = {0, 0, 0, 0, 1};
  EXPECT_THAT(writer.Buckets(values_, kinds, 32),
              ElementsAre(ElementsAre(3, 2), ElementsAre(1, 0), ElementsAre(4)));
  EXPECT_THAT(
      writer.Buckets(values_, kinds, 1),
      ElementsAre(ElementsAre(3), ElementsAre(2), ElementsAre(1), ElementsAre(0), ElementsAre(4)));
  // A bucket that is not full at the end is one, too. A value of another kind waits for its own.
  EXPECT_THAT(writer.Buckets(values_, kinds, 1000),
              ElementsAre(ElementsAre(3, 2, 1, 0), ElementsAre(4)));
  EXPECT_THAT(writer.Buckets(values_, {0, 1, 0, 1, 0}, 1000),
              ElementsAre(ElementsAre(2, 0, 4), ElementsAre(3, 1)));
}

// Starts follow the last gradient that they need; waits stay at the end.
TEST_F(GradientReduction, CollectivesStartWithinTheBackward) {
  CollectiveWriter writer(*model_.graph, "cpu");
  writer.AllReduce(Gradients(), 32);
  EXPECT_EQ(Order(),
            "d c b a e tail CollectiveStart0 CollectiveWait0 CollectiveStart1 CollectiveWait1 "
            "CollectiveStart2 CollectiveWait2");
  EXPECT_EQ(Ordered(false),
            "d c CollectiveStart0 b a CollectiveStart1 e CollectiveStart2 tail CollectiveWait0 "
            "CollectiveWait1 CollectiveWait2");
  for (const Value* value : values_) {
    EXPECT_EQ(value->producer()->op_type(), "CollectiveWait");
    EXPECT_EQ(value->producer()->provider(), "cpu");
    EXPECT_EQ(value->producer()->phase(), Phase::kOptimizer);
  }
  EXPECT_EQ(values_[0]->type().ToString(), "float32[4]");
  EXPECT_EQ(values_[4]->type().ToString(), "float16[4]");
}

// A bucket's wait comes in front of the second start after its own.
TEST_F(GradientReduction, WithEarlyCommitTwoAreUnderWay) {
  CollectiveWriter writer(*model_.graph, "cpu");
  writer.AllReduce(Gradients(), 16);
  EXPECT_EQ(Ordered(true),
            "d CollectiveStart0 c CollectiveStart1 b CollectiveWait0 CollectiveStart2 a "
            "CollectiveWait1 CollectiveStart3 e CollectiveWait2 CollectiveStart4 tail "
            "CollectiveWait3 CollectiveWait4");
}

TEST_F(GradientReduction, PartsOfABucketAreAwaitedBeforeTheNextOne) {
  CollectiveWriter writer(*model_.graph, "cpu");
  const BucketLayout layout({4, 4}, DType::kFloat32, 2);
  const std::vector<Value*> parts =
      writer.ReduceScatter({{V("d"), V("c")}, {V("b"), V("a")}}, {layout, layout}, {-1, -1});
  ASSERT_EQ(parts.size(), 2u);
  EXPECT_EQ(parts[0]->type().ToString(), "float32[" + std::to_string(layout.part()) + "]");
  EXPECT_EQ(Ordered(false),
            "d c ReduceScatterStart0 b a ReduceScatterWait0 ReduceScatterStart1 e tail "
            "ReduceScatterWait1");
}

// An update begins once all ranks have all sums.
TEST_F(GradientReduction, WhatIsAgreedWaitsForAllCollectives) {
  CollectiveWriter writer(*model_.graph, "cpu");
  writer.AllReduce(Gradients(), 16);
  const Node* agreed = writer.Agreed(V("x"))->producer();
  EXPECT_EQ(agreed->op_type(), "AgreeToCommit");
  EXPECT_EQ(agreed->inputs().size(), 1 + values_.size());
  // The last two only, where updates have begun before.
  EXPECT_EQ(writer.AgreedAtLast(V("x"))->producer()->inputs().size(), 3u);
}

// One exchange a dtype, of rank 0's values.
TEST_F(GradientReduction, BroadcastsByDType) {
  CollectiveWriter writer(*model_.graph, "cpu");
  writer.Broadcast(Gradients());
  std::vector<std::string> kinds;
  for (const auto& node : model_.graph->nodes()) {
    if (node->op_type() == "CollectiveStart")
      kinds.push_back(node->Attr<std::string>("kind", "") + " of " +
                      std::to_string(node->inputs().size()));
  }
  EXPECT_THAT(kinds, ::testing::UnorderedElementsAre("broadcast of 4", "broadcast of 1"));
}

}  // namespace
}  // namespace caesura
