// SPDX-License-Identifier: Apache-2.0
#include "core/gradient/training_mode.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "core/graph/graph_check.h"
#include "core/onnx/model_reader.h"

#include "training/session/training_session.h"

namespace caesura {
namespace {

using ::testing::HasSubstr;
using ::testing::UnorderedElementsAre;

constexpr char kStatistics[] =
    "<float[3] s = {1,1,1}, float[3] b = {0,0,0}, float[3] m = {0,0,0}, float[3] v = {1,1,1}>";

class TrainingMode : public ::testing::Test {
 protected:
  void Load(const std::string& signature, const std::string& body) {
    model_ = ParseModelText("<ir_version: 10, opset_import: [\"\": 22, \"ai.caesura\": 1]>\ng " +
                            signature + " {" + body + "}")
                 .value();
    graph_ = model_.graph.get();
  }
  Value* V(const std::string& name) { return graph_->FindValue(name); }

  Model model_;
  Graph* graph_ = nullptr;
};

TEST_F(TrainingMode, GradientsOfItsOwnAreForTraining) {
  Load("(float[2] x) => (float[2] y)",
       "y = ai.caesura.WithGradient<gradient_inputs = [1], gradient = own (float[2] dy, "
       "float[2] gx) => (float[2] dx) { dx = Mul(dy, gx) }>(x, x)");
  ASSERT_TRUE(SwitchToEvaluation(*graph_).ok());
  EXPECT_EQ(V("y")->producer()->op_type(), "Identity");
  EXPECT_TRUE(CheckGraph(*graph_).ok()) << CheckGraph(*graph_).ToString();
}

TEST_F(TrainingMode, BatchNormalizationLearnsItsStatistics) {
  Load(std::string("(float[N,3] x) => (float[N,3] y) ") + kStatistics,
       "y = BatchNormalization<epsilon = 0.25, momentum = 0.5>(x, s, b, m, v)");
  EXPECT_THAT(RunningStatistics(*graph_), UnorderedElementsAre(V("m"), V("v")));
  Value* y = V("y");
  const auto updates = SwitchToTraining(*graph_).value();
  ASSERT_EQ(updates.size(), 2u);
  EXPECT_EQ(updates[0].target, V("m"));
  EXPECT_EQ(updates[1].target, V("v"));
  const Node& node = *graph_->nodes()[0];
  EXPECT_EQ(node.op_type(), "BatchNormalizationTraining");
  EXPECT_EQ(node.output(0), y);
  EXPECT_EQ(updates[1].value, node.output(2));
  EXPECT_EQ(node.Attr<float>("epsilon", 0), 0.25f);
  EXPECT_EQ(node.Attr<float>("momentum", 0), 0.5f);
  EXPECT_EQ(node.Attr<int64_t>("unbiased", -1), 0);
  Load(std::string("(float[N,3] x) => (float[N,3] y) ") + kStatistics,
       "y = BatchNormalization(x, s, b, m, v)");
  ASSERT_TRUE(SwitchToTraining(*graph_, {.unbiased_statistics = true}).ok());
  EXPECT_EQ(graph_->nodes()[0]->Attr<int64_t>("unbiased", -1), 1);
  EXPECT_THAT(RunningStatistics(*graph_), UnorderedElementsAre(V("m"), V("v")));
  EXPECT_TRUE(CheckGraph(*graph_).ok()) << CheckGraph(*graph_).ToString();
}

TEST_F(TrainingMode, TheModelsOwnTrainingModeKeepsOnnxVariance) {
  Load(std::string("(float[N,3] x) => (float[N,3] y, float[3] rm) ") + kStatistics,
       "y, rm, rv = BatchNormalization<training_mode = 1>(x, s, b, m, v)");
  const auto updates = SwitchToTraining(*graph_).value();
  EXPECT_EQ(graph_->nodes()[0]->Attr<int64_t>("unbiased", -1), 0);
  EXPECT_EQ(updates[0].value, V("rm"));
}

TEST_F(TrainingMode, SharedStatisticsAreUpdatedInTurn) {
  Load(std::string("(float[N,3] x) => (float[N,3] y) ") + kStatistics,
       "h = BatchNormalization(x, s, b, m, v) y = BatchNormalization(h, s, b, m, v)");
  const auto updates = SwitchToTraining(*graph_).value();
  ASSERT_EQ(updates.size(), 2u);
  EXPECT_EQ(graph_->nodes()[1]->input(3), graph_->nodes()[0]->output(1));
  EXPECT_EQ(updates[0].value, graph_->nodes()[1]->output(1));
}

TEST_F(TrainingMode, SomeNodesStayAsTheyAre) {
  Load(std::string("(float[N,3] x) => (float[N,3] y) ") + kStatistics,
       "[frozen] y = BatchNormalization(x, s, b, m, v)");
  EXPECT_TRUE(SwitchToTraining(*graph_, {.keep_evaluation = {"frozen"}}).value().empty());
  EXPECT_EQ(graph_->nodes()[0]->op_type(), "BatchNormalization");
}

TEST_F(TrainingMode, WhatAModelAssignsIsWrittenBehindAStep) {
  const auto load = [&](const std::string& body) {
    model_ = ParseModelText(
                 "<ir_version: 10, opset_import: [\"\": 22, \"ai.caesura\": 1]>\n"
                 "g (float[N,3] x) => (float[3] n, float[N,3] y) <float[3] u = {1,1,1}> {" +
                 body + "}")
                 .value();
    graph_ = model_.graph.get();
  };
  constexpr char kAverage[] =
      "a = ReduceMean<keepdims = 0>(x, axes) n = ai.caesura.Assign(u, a) y = Mul(x, u)";
  load("axes = Constant<value_ints = [0]>() " + std::string(kAverage));
  EXPECT_THAT(RunningStatistics(*graph_), UnorderedElementsAre(V("u")));
  const auto updates = SwitchToTraining(*graph_).value();
  ASSERT_EQ(updates.size(), 1u);
  EXPECT_EQ(updates[0].target, V("u"));
  EXPECT_EQ(updates[0].value, V("a"));
  EXPECT_EQ(graph_->outputs()[0], V("a"));
  EXPECT_TRUE(CheckGraph(*graph_).ok()) << CheckGraph(*graph_).ToString();

  load("axes = Constant<value_ints = [0]>() " + std::string(kAverage));
  ASSERT_TRUE(SwitchToEvaluation(*graph_).ok());
  EXPECT_EQ(graph_->outputs()[0], V("u"));
  for (const auto& node : graph_->nodes()) EXPECT_FALSE(node->Is("Assign", kCaesuraDomain));

  load("n = ai.caesura.Assign(x, u) y = Identity(x)");
  EXPECT_THAT(SwitchToTraining(*graph_).status().message(), HasSubstr("needs an initializer"));
  load("n = ai.caesura.Assign(u, u) m = ai.caesura.Assign(u, n) y = Identity(x)");
  EXPECT_THAT(SwitchToTraining(*graph_).status().message(),
              HasSubstr("that nothing else writes to"));
}

// u and k are equal when the model is read, and only then.
TEST_F(TrainingMode, WhatAModelAssignsIsNoConstant) {
  Load(
      "(float[2,3] x) => (float loss, float[3] n) <float[3] u = {1,1,1}, float[3] k = {1,1,1}, "
      "float[3] w = {1,1,1}, "
      "int64[1] axes = {0}>",
      "a = Mul(x, u) b = Mul(x, k) d = Sub(a, b) y = Mul(d, w) m = ReduceMean<keepdims = 0>(x, "
      "axes) "
      "n = ai.caesura.Assign(u, m) loss = ReduceMean<keepdims = 0>(y)");
  TrainingOptions options;
  options.step.loss = Loss::Output("loss");
  options.step.trainable = {"w"};
  options.step.optimizer = Sgd{.learning_rate = 0};
  auto session = TrainingSession::Create(std::move(model_), options).value();
  const Tensor x = Tensor::Of<float>(Shape{2, 3}, {3, 3, 3, 3, 3, 3});
  EXPECT_EQ(session->Step({{"x", x}}).value(), 0);
  EXPECT_EQ(session->Step({{"x", x}}).value(), 6);
}

TEST_F(TrainingMode, DropoutDrops) {
  Load("(float[4] x, bool t) => (float[4] y, float[4] z) <float r = {0.3}, bool f = {0}>",
       "a = Dropout(x) b = Dropout(a, r, f) y = Identity(b) z = Dropout(x, r, t)");
  ASSERT_TRUE(SwitchToTraining(*graph_).ok());
  for (const char* name : {"a", "b"}) {
    const Tensor* mode = graph_->Initializer(V(name)->producer()->input(2));
    ASSERT_NE(mode, nullptr);
    EXPECT_TRUE(*mode->data<bool>());
  }
  EXPECT_EQ(V("z")->producer()->input(2), V("t"));  // the caller decides
}

TEST_F(TrainingMode, StatisticsInsideOfBodiesAreRefused) {
  Load(std::string("(bool c, float[N,3] x) => (float[N,3] y) ") + kStatistics,
       "y = If(c) <then_branch = t () => (float[N,3] p) { [inner] p = BatchNormalization(x, s, b, "
       "m, v) },"
       " else_branch = e () => (float[N,3] q) { q = Dropout(x) }>");
  EXPECT_THAT(SwitchToTraining(*graph_).status().message(), HasSubstr("cannot update 'm'"));
}

}  // namespace
}  // namespace caesura
