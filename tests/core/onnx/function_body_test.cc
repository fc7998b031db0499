// SPDX-License-Identifier: Apache-2.0
#include "core/onnx/function_body.h"

#include <gtest/gtest.h>

#include "core/graph/graph_check.h"
#include "core/onnx/model_reader.h"
#include "core/graph/op_schema.h"
#include "core/onnx/inference/shape_inference.h"

namespace caesura {
namespace {

Model ParseBody(const std::string& body) {
  return ParseModelText("<ir_version: 10, opset_import: [\"\" : 23]> g " + body).value();
}

TEST(FunctionBodyTest, ReplacesTheNodeInItsPlace) {
  Model model = ParseBody(
      "(float[2, 4] x, float[4] s) => (float[2, 4] y, float[2, 4] z) { "
      "[before] h = Neg (x) [norm] y = LayerNormalization <axis = -1> (h, s) [after] z = Relu (y) "
      "}");
  Graph& graph = *model.graph;
  Node* node = graph.nodes()[1].get();
  node->set_phase(Phase::kBackward);
  node->set_source("net.py:1");
  Value* y = node->output(0);
  ASSERT_TRUE(ExpandFunctionBody(graph, node).value());
  EXPECT_TRUE(CheckGraph(graph).ok()) << CheckGraph(graph).ToString();
  EXPECT_EQ(graph.FindValue("y"), y);
  EXPECT_EQ(graph.outputs()[0], y);
  EXPECT_EQ(graph.nodes().front()->name(), "before");
  EXPECT_EQ(graph.nodes().back()->name(), "after");
  for (size_t i = 1; i + 1 < graph.nodes().size(); ++i) {
    const Node& inner = *graph.nodes()[i];
    EXPECT_EQ(inner.name().compare(0, 5, "norm/"), 0) << inner.name();
    EXPECT_EQ(inner.phase(), Phase::kBackward);
    EXPECT_EQ(inner.source(), "net.py:1");
    EXPECT_EQ(inner.since_version(), SinceVersion(inner.op_type()));
    EXPECT_TRUE(inner.output(0)->type().is_tensor()) << inner.output(0)->name();
  }
}

TEST(FunctionBodyTest, LeavesOutWhatNothingReads) {
  Model model =
      ParseBody("(float[2, 4] x, float[4] s) => (float[2, 4] y) { y = LayerNormalization (x, s) }");
  ASSERT_TRUE(ExpandFunctionBody(*model.graph, model.graph->nodes()[0].get()).value());
  for (const auto& node : model.graph->nodes()) EXPECT_FALSE(node->Is("Reciprocal"));
}

TEST(FunctionBodyTest, BindsAttributesAndDefaults) {
  Model model = ParseBody(
      "(float[3] x) => (float[3] y, float[3] z) { [one] y = ThresholdedRelu (x) [two] z = "
      "ThresholdedRelu <alpha "
      "= 2.5> (x) }");
  Graph& graph = *model.graph;
  ASSERT_TRUE(ExpandFunctionBody(graph, graph.FindValue("y")->producer()).value());
  ASSERT_TRUE(ExpandFunctionBody(graph, graph.FindValue("z")->producer()).value());
  std::vector<float> alphas;
  for (const auto& node : graph.nodes()) {
    if (!node->Is("Constant")) continue;
    const float value = node->FindAttr<Tensor>("value")->ToVector<float>()[0];
    if (value != 0) alphas.push_back(value);
  }
  EXPECT_EQ(alphas, (std::vector<float>{1.0f, 2.5f}));
}

TEST(FunctionBodyTest, DependsOnInputs) {
  // The body of Clip is another one for each combination of bounds.
  Model model = ParseBody(
      "(float[3] x, float low, float high) => (float[3] y, float[3] z) { y = Clip (x, low) z = "
      "Clip (x, , high) "
      "}");
  Graph& graph = *model.graph;
  ASSERT_TRUE(ExpandFunctionBody(graph, graph.FindValue("y")->producer()).value());
  ASSERT_TRUE(ExpandFunctionBody(graph, graph.FindValue("z")->producer()).value());
  EXPECT_TRUE(CheckGraph(graph).ok());
  for (const auto& node : graph.nodes()) EXPECT_FALSE(node->Is("Clip"));
}

TEST(FunctionBodyTest, OpsWithoutABodyStay) {
  Model model = ParseBody("(float[3] x) => (float[3] y) { y = Neg (x) }");
  Node* node = model.graph->nodes()[0].get();
  EXPECT_FALSE(HasFunctionBody(*node));
  EXPECT_FALSE(ExpandFunctionBody(*model.graph, node).value());
  EXPECT_EQ(model.graph->nodes()[0].get(), node);
  EXPECT_TRUE(CheckGraph(*model.graph).ok());
}

TEST(FunctionBodyTest, WorksInsideOfBodies) {
  Model model = ParseBody(
      "(bool c, float[2, 4] x) => (float[2, 4] y) { y = If (c) <then_branch = t () => (float[2, 4] "
      "a) "
      "{ a = Gelu (x) }, else_branch = e () => (float[2, 4] b) { b = Neg (x) }> }");
  Graph* body = nullptr;
  for (Graph* one : model.graph->nodes()[0]->Subgraphs()) {
    if (one->nodes()[0]->Is("Gelu")) body = one;
  }
  ASSERT_TRUE(ExpandFunctionBody(*body, body->nodes()[0].get()).value());
  EXPECT_TRUE(CheckGraph(*model.graph).ok()) << CheckGraph(*model.graph).ToString();
  EXPECT_EQ(body->outputs()[0]->name(), "a");
}

TEST(FunctionBodyTest, BodiesOfTheNodeReadTheValuesAround) {
  Model model = ParseBody(
      "(seq(float[?]) s, float[1] w) => (seq(float[?]) r) { r = SequenceMap (s) <body = b "
      "(float[?] e) => "
      "(float[?] f) { f = Mul (e, w) }> }");
  ASSERT_TRUE(ExpandFunctionBody(*model.graph, model.graph->nodes()[0].get()).value());
  EXPECT_TRUE(CheckGraph(*model.graph).ok()) << CheckGraph(*model.graph).ToString();
  EXPECT_EQ(model.graph->FindValue("w")->uses().size(), 1u);
}

// Every op that ONNX defines by others can be expanded until none is left, with all types known.
TEST(FunctionBodyTest, LossesAndAttentionExpandToTheGround) {
  const char* const kGraphs[] = {
      "(float[N, 10] x, int64[N] t) => (float y) { y = SoftmaxCrossEntropyLoss (x, t) }",
      "(float[N, 10, 3] x, int64[N, 3] t, float[10] w) => (float y) { y = "
      "NegativeLogLikelihoodLoss <ignore_index "
      "= 2> (x, t, w) }",
      "(float[N, 3, 8, 16] q, float[N, 3, 8, 16] k, float[N, 3, 8, 16] v) => (float[N, 3, 8, 16] "
      "y) { y = "
      "Attention <is_causal = 1> (q, k, v) }",
      "(float[N, 8] x, float[8] s) => (float[N, 8] y) { y = RMSNormalization (x, s) }",
      "(float[N, 8, 5] x, float[8] s, float[8] b) => (float[N, 8, 5] y) { y = GroupNormalization "
      "<num_groups = 2> "
      "(x, s, b) }",
      "(float[N, 8] x) => (float[N, 8] a, float[N, 8] b, float[N, 8] c, float[N, 8] d) { a = Elu "
      "(x) b = Mish (x) "
      "c = HardSwish (x) d = Softmax (x) }",
  };
  for (const char* text : kGraphs) {
    Model model = ParseBody(text);
    for (size_t i = 0; i < model.graph->nodes().size();) {
      Node* node = model.graph->nodes()[i].get();
      if (!HasFunctionBody(*node) || !ExpandFunctionBody(*model.graph, node).value()) ++i;
    }
    EXPECT_TRUE(CheckGraph(*model.graph).ok()) << text;
    EXPECT_TRUE(InferShapes(model).ok()) << text;
    for (const Value* value : model.graph->Values()) {
      EXPECT_TRUE(value->type().is_tensor()) << text << ": " << value->name();
    }
  }
}

}  // namespace
}  // namespace caesura
