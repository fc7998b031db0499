// SPDX-License-Identifier: Apache-2.0
// Nodes and the values that they read and write, one at a time. What a graph does with its nodes is
// in graph_test.cc and graph_edit_test.cc.
#include "core/graph/graph.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "core/graph/graph_check.h"

namespace caesura {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;

const ValueType kRow = ValueType::Tensor(DType::kFloat32, Shape{3});

TEST(NodeTest, IsKnownByOpDomainAndName) {
  Graph graph;
  Value* x = graph.AddInput("x", kRow);
  const Node* relu = graph.AddNode("Relu", {x}, {graph.AddValue("y")}, {}, "", "relu_3");
  const Node* ours =
      graph.AddNode("YieldOp", {x}, {graph.AddValue("z")}, {}, kCaesuraDomain, "cut");
  EXPECT_EQ(relu->Label(), "[Relu 'relu_3']");
  EXPECT_EQ(ours->Label(), "[ai.caesura::YieldOp 'cut']");
  EXPECT_TRUE(relu->Is("Relu"));
  EXPECT_FALSE(relu->Is("Relu", kCaesuraDomain));
  EXPECT_FALSE(ours->Is("YieldOp"));
  EXPECT_TRUE(ours->Is("YieldOp", kCaesuraDomain));
  EXPECT_EQ(relu->graph(), &graph);
  EXPECT_EQ(x->producer(), nullptr);
  EXPECT_EQ(relu->output(0)->producer(), relu);
  EXPECT_EQ(relu->output(0)->graph(), &graph);
}

TEST(NodeTest, AttributesAreFoundByNameAndKind) {
  Graph graph;
  Node* node = graph.AddOp("Op", {}, {{"axis", int64_t{2}}, {"name", std::string("a")}}, "test");
  EXPECT_EQ(node->Attr<int64_t>("axis", 7), 2);
  EXPECT_EQ(node->Attr<int64_t>("axes", 7), 7);      // absent
  EXPECT_EQ(node->Attr<float>("axis", 0.5f), 0.5f);  // another kind: no conversion
  EXPECT_EQ(node->FindAttr<float>("axis"), nullptr);
  EXPECT_EQ(*node->FindAttr<std::string>("name"), "a");
  node->SetAttribute("axis", std::vector<int64_t>{1, 2});  // in the place of the other kind
  EXPECT_EQ(node->attributes().size(), 2u);
  EXPECT_THAT(node->Attr<std::vector<int64_t>>("axis", {}), ElementsAre(1, 2));
  node->SetAttribute("weight", Tensor::Of<float>(Shape{2}, {3, 4}));
  EXPECT_THAT(node->FindAttr<Tensor>("weight")->ToVector<float>(), ElementsAre(3, 4));
  EXPECT_TRUE(node->HasAttribute("axis"));
  node->RemoveAttribute("axis");
  node->RemoveAttribute("axes");  // there is none
  EXPECT_FALSE(node->HasAttribute("axis"));
  EXPECT_TRUE(node->HasAttribute("name"));
}

TEST(NodeTest, BodiesComeInTheOrderOfAttributes) {
  Graph graph;
  std::vector<std::shared_ptr<Graph>> bodies;
  for (const char* name : {"one", "two", "three", "four"})
    bodies.push_back(std::make_shared<Graph>(name, &graph));
  const Node* node = graph.AddOp("Op", {},
                                 {{"z", bodies[3]},
                                  {"b", std::vector{bodies[1], bodies[2]}},
                                  {"a", bodies[0]},
                                  {"m", int64_t{1}}},
                                 "test");
  EXPECT_THAT(node->Subgraphs(),
              ElementsAre(bodies[0].get(), bodies[1].get(), bodies[2].get(), bodies[3].get()));
  EXPECT_THAT(graph.AddOp("Op", {}, {}, "test")->Subgraphs(), IsEmpty());
}

// A node of a body is a user of the outer value, and says whose node it is.
TEST(NodeTest, BodiesUseOuterValues) {
  Graph graph;
  Value* x = graph.AddInput("x", kRow);
  auto body = std::make_shared<Graph>("body", &graph);
  Node* inner = body->AddOp("Neg", {x});
  graph.AddOp("Op", {}, {{"body", body}}, "test");
  ASSERT_EQ(x->uses().size(), 1u);
  EXPECT_EQ(x->uses()[0].node, inner);
  EXPECT_EQ(x->uses()[0].node->graph(), body.get());
  graph.AddOutput(x);  // no use
  EXPECT_EQ(x->uses().size(), 1u);
}

TEST(NodeTest, EachInputIsAUseOfItsOwn) {
  Graph graph;
  Value *x = graph.AddInput("x", kRow), *z = graph.AddInput("z", kRow);
  Node* node = graph.AddOp("Op", {x, nullptr, x}, {}, "test");
  EXPECT_EQ(node->input(1), nullptr);
  EXPECT_EQ(node->input(3), nullptr);  // beyond the last one
  EXPECT_EQ(node->output(1), nullptr);
  EXPECT_EQ(node->input(-1), nullptr);
  EXPECT_EQ(node->output(-1), nullptr);
  node->SetInput(0, nullptr);
  ASSERT_EQ(x->uses().size(), 1u);
  EXPECT_EQ(x->uses()[0].index, 2);
  node->SetInput(2, x);  // the same again
  EXPECT_EQ(x->uses().size(), 1u);
  node->SetInput(4, z);
  EXPECT_THAT(node->inputs(), ElementsAre(nullptr, nullptr, x, nullptr, z));
  node->TruncateInputs(7);  // there are fewer
  EXPECT_EQ(node->inputs().size(), 5u);
  node->TruncateInputs(2);
  EXPECT_THAT(node->inputs(), ElementsAre(nullptr, nullptr));
  EXPECT_THAT(x->uses(), IsEmpty());
  EXPECT_THAT(z->uses(), IsEmpty());
}

TEST(NodeTest, AbsentOutputsCanBeMade) {
  Graph graph;
  Value* x = graph.AddInput("x", kRow);
  Node* node = graph.AddOp("Op", {x}, {}, "test");
  Value* made = graph.AddValue("made");
  node->SetOutput(2, made);
  EXPECT_THAT(node->outputs(), ElementsAre(node->output(0), nullptr, made));
  EXPECT_EQ(made->producer(), node);
  EXPECT_TRUE(CheckGraph(graph).ok());
}

TEST(NodeTest, MetadataIsSetAsAWholeOrInParts) {
  Graph graph;
  Node* node = graph.AddOp("Op", {}, {}, "test");
  EXPECT_EQ(node->phase(), Phase::kForward);
  EXPECT_EQ(node->source() + node->provider(), "");
  EXPECT_EQ(node->since_version(), 0);  // no schema is known
  node->set_metadata({Phase::kBackward, "model.py:7", "Mine"});
  node->set_phase(Phase::kOptimizer);
  EXPECT_EQ(node->source(), "model.py:7");  // the rest stays
  node->set_source("model.py:8");
  node->set_provider("Other");
  EXPECT_EQ(node->metadata().phase, Phase::kOptimizer);
  EXPECT_EQ(node->metadata().source, "model.py:8");
  EXPECT_EQ(node->metadata().provider, "Other");
}

}  // namespace
}  // namespace caesura
