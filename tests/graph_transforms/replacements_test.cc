// SPDX-License-Identifier: Apache-2.0
#include "core/graph/graph_check.h"
#include "graph_transforms/replacements.h"
#include "tests/graph_transforms/ops_left.h"

namespace caesura::testing {
namespace {

// A chain of replacements, the first of which a body exports.
TEST(Replacements, ReachTheOutputsOfBodies) {
  std::shared_ptr<Graph> graph = GraphOf(R"((float[2] x, bool c) => (float[2] y) {
    a = Identity (x)
    b = Identity (a)
    y = If (c) <then_branch = t () => (float[2] s) { s = Identity (b) }, else_branch = e () => (float[2] n) { n = Neg (b) }>
  })");
  ASSERT_NE(graph, nullptr);
  for (Graph* body : graph->nodes().back()->Subgraphs()) {  // text cannot say that a body puts out
                                                            // what is outside of it
    if (body->name() == "t") body->SetOutput(0, graph->FindValue("b"));
  }
  Value *x = graph->FindValue("x"), *a = graph->FindValue("a"), *b = graph->FindValue("b");
  Replacements replacements;
  replacements.Replace(b, a);
  replacements.Replace(a, x);
  replacements.Finish(*graph);
  graph->RemoveNodes({a->producer(), b->producer()});
  ASSERT_TRUE(CheckGraph(*graph).ok()) << CheckGraph(*graph).ToString();
  const Values feeds = {Ramp(Shape{2}), Tensor::Scalar<bool>(true)};
  EXPECT_TRUE(SameBits(RunWithTrainingKernels(graph, feeds)[0], feeds[0]));
}

}  // namespace
}  // namespace caesura::testing
