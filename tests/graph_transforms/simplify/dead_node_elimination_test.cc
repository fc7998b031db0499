// SPDX-License-Identifier: Apache-2.0
#include "graph_transforms/simplify/dead_node_elimination.h"
#include "tests/graph_transforms/ops_left.h"

namespace caesura::testing {
namespace {

using ::testing::ElementsAre;

TEST(DeadNodeElimination, NodesThatNobodyReads) {
  const char* body = R"((float[2] x) => (float[2] y) {
    a = Neg (x)
    b = Abs (a)
    y = Exp (x)
  })";
  EXPECT_THAT(OpsLeft(MakeDeadNodeEliminationPass(), body, {Ramp(Shape{2})}), ElementsAre("Exp"));
}

// A body reads `a`, which no node's list of inputs names.
TEST(DeadNodeElimination, BodiesRead) {
  const char* body = R"((float[2] x, bool c) => (float[2] y) {
    a = Neg (x)
    y = If (c) <then_branch = t () => (float[2] p) { unread = Exp (a) p = Abs (a) },
                else_branch = e () => (float[2] q) { q = Neg (a) }>
  })";
  EXPECT_THAT(
      OpsLeft(MakeDeadNodeEliminationPass(), body, {Ramp(Shape{2}), Tensor::Scalar<bool>(true)}),
      ElementsAre("Neg", "If"));
  Model model;
  model.graph = GraphOf(body);
  ASSERT_TRUE(RunPasses({MakeDeadNodeEliminationPass()}, model).ok());
  for (const Graph* branch : model.graph->nodes()[1]->Subgraphs())
    EXPECT_EQ(branch->nodes().size(), 1u) << branch->name();
}

// Both act on something outside of the graph.
TEST(DeadNodeElimination, YieldsAndUpdatesStay) {
  Model model;
  model.graph = GraphOf(R"((float[2] x) => (float[2] y) {
    given = ai.caesura.YieldOp (x)
    update = Neg (x)
    y = Exp (x)
  })");
  model.graph->nodes()[1]->set_phase(Phase::kOptimizer);
  ASSERT_TRUE(RunPasses({MakeDeadNodeEliminationPass()}, model).ok());
  EXPECT_EQ(model.graph->nodes().size(), 3u);
}

}  // namespace
}  // namespace caesura::testing
