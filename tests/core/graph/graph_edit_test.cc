// SPDX-License-Identifier: Apache-2.0
#include "core/graph/graph_edit.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "core/graph/graph_check.h"
#include "core/graph/op_schema.h"

namespace caesura {
namespace {

using ::testing::ElementsAre;

// a -> b -> c, each a Relu.
struct Chain {
  Graph graph;
  Value* x = graph.AddInput("x", ValueType::Tensor(DType::kFloat32, Shape{2}));
  Node *a = Add("a", x), *b = Add("b", a->output(0)), *c = Add("c", b->output(0));

  Chain() { graph.AddOutput(c->output(0)); }
  Node* Add(const std::string& name, Value* input) {
    return graph.AddNode("Relu", {input}, {graph.AddValue(name + "_out", x->type())}, {}, "", name);
  }
  NodeSpec Spec(const std::string& name) {
    return {"Neg", {x}, {graph.AddValue(name + "_out", x->type())}, {}, "", name};
  }
  std::vector<std::string> Names() const {
    std::vector<std::string> out;
    for (const auto& node : graph.nodes()) out.push_back(node->name());
    return out;
  }
};

TEST(GraphEdit, PutsNodesInPlaceInTheOrderOfTheCalls) {
  Chain chain;
  GraphEdit edit(chain.graph);
  edit.InsertBefore(*chain.b, chain.Spec("b1"));
  edit.InsertBefore(*chain.b, chain.Spec("b2"));
  edit.InsertAfter(*chain.b, chain.Spec("b3"));
  edit.InsertAfter(*chain.c, chain.Spec("c1"));
  EXPECT_THAT(chain.Names(), ElementsAre("a", "b", "c", "b1", "b2", "b3", "c1"));
  EXPECT_TRUE(edit.Finish());
  EXPECT_THAT(chain.Names(), ElementsAre("a", "b1", "b2", "b", "b3", "c", "c1"));
  EXPECT_FALSE(edit.Finish());
  EXPECT_TRUE(CheckGraph(chain.graph).ok());
}

TEST(GraphEdit, NodesStandBesideOthersThatWereMoved) {
  Chain chain;
  {
    GraphEdit edit(chain.graph);
    const Node* first = edit.InsertBefore(*chain.c, chain.Spec("c1"));
    edit.InsertBefore(*first, chain.Spec("c0"));
    edit.MoveBefore(*first, *chain.b);  // the last place counts, and takes its neighbours along
  }
  EXPECT_THAT(chain.Names(), ElementsAre("a", "c0", "c1", "b", "c"));
}

TEST(GraphEdit, ReplacesNodesThatFeedOneAnother) {
  Chain chain;
  GraphEdit edit(chain.graph);
  for (Node* node : {chain.b, chain.c}) {
    edit.Replace(
        *node,
        {"Abs", {node->input(0)}, chain.graph.ReleaseOutputs(node), {}, "", node->name() + "2"});
  }
  EXPECT_TRUE(edit.IsRemoved(*chain.b));
  EXPECT_TRUE(edit.Finish());
  EXPECT_THAT(chain.Names(), ElementsAre("a", "b2", "c2"));
  EXPECT_EQ(chain.graph.outputs()[0]->producer()->op_type(), "Abs");
  EXPECT_TRUE(CheckGraph(chain.graph).ok());
}

TEST(GraphEdit, NewNodesHaveTheMetadataOfTheirOrigin) {
  Chain chain;
  chain.b->set_metadata({Phase::kBackward, "model.py:7", "Another"});
  GraphEdit edit(chain.graph);
  for (const Node* node :
       {edit.InsertBefore(*chain.b, chain.Spec("b1")), edit.InsertAfter(*chain.b, chain.Spec("b2")),
        edit.Replace(*chain.c, chain.Spec("c1"))}) {
    const NodeMetadata& expected = (node->name() == "c1" ? chain.c : chain.b)->metadata();
    EXPECT_EQ(node->phase(), expected.phase);
    EXPECT_EQ(node->source(), expected.source);
    EXPECT_EQ(node->provider(), expected.provider);
    EXPECT_EQ(node->since_version(), SinceVersion("Neg"));
  }
  chain.graph.ClearOutputs();
}

}  // namespace
}  // namespace caesura
