// SPDX-License-Identifier: Apache-2.0
#include "graph_transforms/simplify/constant_nodes.h"
#include "tests/graph_transforms/ops_left.h"

namespace caesura::testing {
namespace {

using ::testing::ElementsAre;

TEST(ConstantNodes, BecomeInitializers) {
  const char* body = R"((float[2] x) => (float[2] y) {
    c = Constant <value_floats = [2.0, 3.0]> ()
    y = Mul (x, c)
  })";
  EXPECT_THAT(OpsLeft(MakeConstantNodesPass(), body, {Ramp(Shape{2})}), ElementsAre("Mul"));
}

// Its readers read an initializer; the node stays for the output's name.
TEST(ConstantNodes, AGraphOutputKeepsItsNode) {
  const char* body = R"((float[2] x) => (float[2] y, float[2] c) {
    c = Constant <value_floats = [2.0, 3.0]> ()
    y = Mul (x, c)
  })";
  EXPECT_THAT(OpsLeft(MakeConstantNodesPass(), body, {Ramp(Shape{2})}),
              ElementsAre("Constant", "Mul"));
  Model model;
  model.graph = GraphOf(body);
  ASSERT_TRUE(RunPasses({MakeConstantNodesPass()}, model).ok());
  EXPECT_TRUE(model.graph->FindValue("c")->uses().empty());
}

TEST(ConstantNodes, AlsoInBodies) {
  const char* body = R"((float[2] x, bool c) => (float[2] y) {
    y = If (c) <then_branch = t () => (float[2] a) { k = Constant <value_float = 2.0> () a = Mul (x, k) },
                else_branch = e () => (float[2] b) { b = Constant <value_floats = [4.0, 5.0]> () }>
  })";
  for (const bool which : {true, false}) {
    EXPECT_THAT(
        OpsLeft(MakeConstantNodesPass(), body, {Ramp(Shape{2}), Tensor::Scalar<bool>(which)}),
        ElementsAre("If"));
  }
  Model model;
  model.graph = GraphOf(body);
  ASSERT_TRUE(RunPasses({MakeConstantNodesPass()}, model).ok());
  for (const Graph* branch : model.graph->nodes()[0]->Subgraphs())
    for (const auto& node : branch->nodes()) EXPECT_NE(node->op_type(), "Constant");
}

}  // namespace
}  // namespace caesura::testing
