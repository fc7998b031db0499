// SPDX-License-Identifier: Apache-2.0
#include "graph_transforms/simplify/function_inlining.h"
#include "tests/graph_transforms/ops_left.h"

namespace caesura::testing {
namespace {

using ::testing::ElementsAre;

// The tests' own provider has no kernel for Softplus, but for the ops of its body.
TEST(FunctionInlining, NodesWithoutAKernelBecomeTheirBodies) {
  Model model;
  model.graph = GraphOf("(float[2] x) => (float[2] y) { y = Softplus (x) }");
  ASSERT_TRUE(RunPasses({MakeFunctionInliningPass(Tiny())}, model).ok());
  EXPECT_GT(model.graph->nodes().size(), 1u);
  for (const auto& node : model.graph->nodes()) EXPECT_NE(node->op_type(), "Softplus");
  const Values feeds = {Ramp(Shape{2})};
  const Tensor found = RunWithTrainingKernels(model.graph, feeds)[0].tensor();
  const Tensor expected =
      RunWithTrainingKernels(GraphOf("(float[2] x) => (float[2] y) { y = Softplus (x) }"), feeds)[0]
          .tensor();
  for (int i = 0; i < 2; ++i)
    EXPECT_NEAR(found.data<float>()[i], expected.data<float>()[i], 1e-6f) << i;
}

TEST(FunctionInlining, NodesWithAKernelStay) {
  EXPECT_THAT(OpsLeft(MakeFunctionInliningPass({MakeCpuProvider()}),
                      "(float[2] x) => (float[2] y) { y = Softplus (x) }", {Ramp(Shape{2})}),
              ElementsAre("Softplus"));
}

// A node without a body stays. Planning says that nobody has its kernel.
TEST(FunctionInlining, NodesWithoutABodyStay) {
  Model model;
  model.graph = GraphOf("(float[2] x) => (float[2] y) { y = Sin (x) }");
  ASSERT_TRUE(RunPasses({MakeFunctionInliningPass({})}, model).ok());
  EXPECT_EQ(model.graph->nodes()[0]->op_type(), "Sin");
}

}  // namespace
}  // namespace caesura::testing
