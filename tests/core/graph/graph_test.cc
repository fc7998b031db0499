// SPDX-License-Identifier: Apache-2.0
#include "core/graph/graph.h"

#include <gtest/gtest.h>

#include "core/graph/graph_check.h"
#include "core/graph/op_schema.h"
#include "core/onnx/model_reader.h"

namespace caesura {
namespace {

const ValueType kPair = ValueType::Tensor(DType::kFloat32, Shape{2});

std::vector<std::string> NodeNames(const Graph& graph) {
  std::vector<std::string> names;
  for (const auto& node : graph.nodes()) names.push_back(node->name());
  return names;
}

TEST(GraphTest, NamesAreUnique) {
  Graph graph;
  Value* x = graph.AddInput("x", kPair);
  EXPECT_EQ(x->name(), "x");
  EXPECT_NE(graph.AddValue("x")->name(), "x");
  EXPECT_FALSE(graph.AddValue("")->name().empty());
  Node* a = graph.AddOp("Relu", {x});
  Node* b = graph.AddOp("Relu", {x});
  EXPECT_NE(a->name(), b->name());
  EXPECT_NE(a->output(0)->name(), b->output(0)->name());
}

TEST(GraphTest, UsesFollowInputs) {
  Graph graph;
  Value* x = graph.AddInput("x", kPair);
  Value* w = graph.AddInput("w", kPair);
  Node* add = graph.AddOp("Add", {x, x});
  EXPECT_EQ(x->uses().size(), 2u);
  add->SetInput(1, w);
  EXPECT_EQ(x->uses().size(), 1u);
  ASSERT_EQ(w->uses().size(), 1u);
  EXPECT_EQ(w->uses()[0].node, add);
  EXPECT_EQ(w->uses()[0].index, 1);
  add->SetInput(3, w);
  EXPECT_EQ(add->inputs().size(), 4u);
  EXPECT_EQ(add->input(2), nullptr);
  add->TruncateInputs(1);
  EXPECT_TRUE(w->uses().empty());
}

TEST(GraphTest, ReplaceAllUsesReachesBodiesAndOutputs) {
  Model model = ParseModelText(R"(<ir_version: 10, opset_import: ["" : 21]>
    g (bool c, float[2] x, float[2] z) => (float[2] y, float[2] h) {
      h = Neg (x)
      y = If (c) <then_branch = t () => (float[2] a) { a = Relu (h) },
                  else_branch = e () => (float[2] b) { b = Abs (h) }>
    })")
                    .value();
  Graph& graph = *model.graph;
  Value* h = graph.FindValue("h");
  Value* z = graph.FindValue("z");
  EXPECT_EQ(h->uses().size(), 2u);
  graph.ReplaceAllUses(h, z);
  EXPECT_TRUE(h->uses().empty());
  EXPECT_EQ(z->uses().size(), 2u);
  EXPECT_EQ(graph.outputs()[1], z);
  EXPECT_EQ(Graph::ImplicitInputs(*graph.nodes()[1]), std::vector<Value*>{z});
  graph.RemoveNode(h->producer());
  EXPECT_EQ(graph.FindValue("h"), nullptr);
  EXPECT_TRUE(CheckGraph(graph).ok());
}

TEST(GraphTest, RemovingANodeReleasesWhatItsBodiesRead) {
  Model model = ParseModelText(R"(<ir_version: 10, opset_import: ["" : 21]>
    g (bool c, float[2] x) => (float[2] x2) {
      x2 = Neg (x)
      y = If (c) <then_branch = t () => (float[2] a) { a = Relu (x) },
                  else_branch = e () => (float[2] b) { b = Abs (x) }>
    })")
                    .value();
  EXPECT_EQ(model.graph->FindValue("x")->uses().size(), 3u);
  model.graph->RemoveNode(model.graph->nodes()[1].get());
  EXPECT_EQ(model.graph->FindValue("x")->uses().size(), 1u);
  EXPECT_TRUE(CheckGraph(*model.graph).ok());
}

TEST(GraphTest, SortIsStableAndFindsCycles) {
  Graph graph;
  Value* x = graph.AddInput("x", kPair);
  Value* late = graph.AddValue("late");
  graph.AddNode("Neg", {late}, {graph.AddValue("n")}, {}, "", "reads_late");
  graph.AddNode("Abs", {x}, {graph.AddValue("a")}, {}, "", "free");
  Node* writer = graph.AddNode("Relu", {x}, {late}, {}, "", "writes_late");
  ASSERT_TRUE(graph.SortTopologically().ok());
  EXPECT_EQ(NodeNames(graph), (std::vector<std::string>{"free", "writes_late", "reads_late"}));
  ASSERT_TRUE(graph.SortTopologically().ok());
  EXPECT_EQ(NodeNames(graph), (std::vector<std::string>{"free", "writes_late", "reads_late"}));
  writer->SetInput(0, graph.FindValue("n"));
  Status status = graph.SortTopologically();
  EXPECT_EQ(status.code(), StatusCode::kInvalidModel);
  EXPECT_NE(status.message().find("cycle"), std::string::npos);
}

TEST(GraphTest, ANodeCanBeReplacedInItsPlace) {
  Graph graph;
  Value* x = graph.AddInput("x", kPair);
  Node* old_node = graph.AddNode("Relu", {x}, {graph.AddValue("y")}, {}, "", "old");
  Value* y = old_node->output(0);
  graph.AddNode("Neg", {y}, {graph.AddValue("z")}, {}, "", "reader");
  graph.AddOutput(y);
  old_node->set_metadata({Phase::kOptimizer, "model.py:7", "Another"});
  std::vector<Value*> outputs = graph.ReleaseOutputs(old_node);
  EXPECT_EQ(y->producer(), nullptr);
  const Node* made = graph.InsertBefore(*old_node, {"Abs", {x}, outputs, {}, "", "new"});
  EXPECT_EQ(made->phase(), Phase::kOptimizer);
  EXPECT_EQ(made->source(), "model.py:7");
  EXPECT_EQ(made->provider(), "Another");
  EXPECT_EQ(made->since_version(), SinceVersion("Abs"));
  graph.RemoveNode(old_node);
  EXPECT_EQ(NodeNames(graph), (std::vector<std::string>{"new", "reader"}));
  EXPECT_EQ(graph.FindValue("y"), y);
  EXPECT_TRUE(CheckGraph(graph).ok());
}

// A node with a body that reads x under another name at its new place.
TEST(GraphTest, ACopyOfANodeHasItsVersionMetadataAndBodies) {
  Graph graph;
  Value *x = graph.AddInput("x", kPair), *z = graph.AddInput("z", kPair);
  auto body = std::make_shared<Graph>("body", &graph);
  body->AddOutput(body->AddOp("Relu", {x})->output(0));
  Value* condition = graph.AddInput("condition", ValueType::Tensor(DType::kBool, Shape{}));
  Node* node = graph.AddNode("If", {condition}, {graph.AddValue("y")},
                             {{"then_branch", body}, {"else_branch", body->Clone(&graph)}});
  node->set_since_version(16);
  node->set_metadata({Phase::kBackward, "model.py:7", "Another"});
  std::unordered_map<const Value*, Value*> mapping = {{x, z}};
  const Node* copy = graph.CloneNode(*node, {condition}, {graph.AddValue("w")}, "copy", &mapping);
  EXPECT_EQ(copy->name(), "copy");
  EXPECT_EQ(copy->since_version(), 16);
  EXPECT_EQ(copy->phase(), Phase::kBackward);
  EXPECT_EQ(copy->source(), "model.py:7");
  EXPECT_EQ(copy->provider(), "Another");
  for (const Graph* inner : copy->Subgraphs()) {
    EXPECT_EQ(inner->parent(), &graph);
    EXPECT_EQ(inner->nodes()[0]->input(0), z);
  }
  EXPECT_EQ(node->Subgraphs()[0]->nodes()[0]->input(0), x);
}

TEST(GraphTest, ClonesShareNothingButBytes) {
  Model model = ParseModelText(R"(<ir_version: 10, opset_import: ["" : 21]>
    g (bool c, float[2] x) => (float[2] y) <float[2] w = {1, 2}> {
      h = Add (x, w)
      y = If (c) <then_branch = t () => (float[2] a) { a = Relu (h) },
                  else_branch = e () => (float[2] b) { b = Abs (w) }>
    })")
                    .value();
  Model copy = model.Clone();
  EXPECT_TRUE(CheckGraph(*copy.graph).ok());
  EXPECT_TRUE(CheckGraph(*model.graph).ok());
  EXPECT_EQ(ModelText(copy), ModelText(model));
  EXPECT_NE(copy.graph->FindValue("h"), model.graph->FindValue("h"));
  EXPECT_EQ(copy.graph->Initializer(copy.graph->FindValue("w"))->raw(),
            model.graph->Initializer(model.graph->FindValue("w"))->raw());
  copy.graph->ClearOutputs();
  copy.graph->RemoveNode(copy.graph->nodes()[1].get());
  EXPECT_EQ(model.graph->nodes().size(), 2u);
}

TEST(GraphTest, UnusedValuesGo) {
  Graph graph;
  Value* x = graph.AddInput("x", kPair);
  graph.AddInitializer("unused", Tensor::Of<float>({1}, {1}));
  graph.AddValue("nothing");
  graph.AddOutput(graph.AddOp("Relu", {x})->output(0));
  graph.RemoveUnusedValues();
  EXPECT_EQ(graph.Values().size(), 2u);
  EXPECT_TRUE(graph.initializers().empty());
}

}  // namespace
}  // namespace caesura
