// SPDX-License-Identifier: Apache-2.0
// every_pass_test.cc compares the numbers.
#include "graph_transforms/fusion/gemm_fusion.h"

#include "graph_transforms/shapes/shape_inference_pass.h"
#include "graph_transforms/simplify/dead_node_elimination.h"
#include "tests/graph_transforms/ops_left.h"

namespace caesura::testing {
namespace {

using ::testing::ElementsAre;

Model AfterGemmFusion(const std::string& body) {
  Model model;
  model.graph = GraphOf(body);
  const auto records = RunPasses(
      {MakeShapeInferencePass(), MakeGemmFusionPass(), MakeDeadNodeEliminationPass()}, model);
  EXPECT_TRUE(records.ok()) << records.status().ToString();
  return model;
}

std::vector<std::string> OpsAfterGemmFusion(const std::string& body) {
  const Model model = AfterGemmFusion(body);
  std::vector<std::string> ops;
  for (const auto& node : model.graph->nodes()) ops.push_back(node->op_type());
  return ops;
}

TEST(GemmFusion, ALinearLayerIsOneNode) {
  const Model model = AfterGemmFusion(
      R"((float[N, 4] x, float[6, 4] w, float[6] b) => (float[N, 6] y) <float half = {0.5}> {
    t = Transpose <perm = [1, 0]> (w)
    p = MatMul (x, t)
    q = Mul (p, half)
    y = Add (b, q)
  })");
  ASSERT_EQ(model.graph->nodes().size(), 1u);
  const Node& gemm = *model.graph->nodes().front();
  EXPECT_TRUE(gemm.Is("Gemm"));
  EXPECT_EQ(gemm.input(2)->name(), "b");
  EXPECT_EQ(gemm.Attr<int64_t>("transB", 0), 1);
  EXPECT_EQ(gemm.Attr<float>("alpha", 1), 0.5f);
}

TEST(GemmFusion, ATransposedProductSwapsItsFactors) {
  const Model model = AfterGemmFusion(R"((float[N, 4] x, float[N, 6] d) => (float[6, 4] y) {
    p = Gemm <transA = 1> (x, d)
    y = Transpose <perm = [1, 0]> (p)
  })");
  ASSERT_EQ(model.graph->nodes().size(), 1u);
  const Node& gemm = *model.graph->nodes().front();
  EXPECT_EQ(gemm.input(0)->name(), "d");
  EXPECT_EQ(gemm.Attr<int64_t>("transA", 0), 1);
  EXPECT_EQ(gemm.Attr<int64_t>("transB", 0), 0);
}

// A product that others read, factors that are fed or that float32 cannot say, what would be made
// larger, products of batches and of integers.
TEST(GemmFusion, OthersStay) {
  EXPECT_THAT(OpsAfterGemmFusion(
                  R"((float[3, 4] x, float[4, 6] w, float[6] b) => (float[3, 6] y, float[3, 6] z) {
    p = MatMul (x, w)
    y = Add (p, b)
    z = Neg (p)
  })"),
              ElementsAre("MatMul", "Add", "Neg"));
  EXPECT_THAT(OpsAfterGemmFusion(R"((float[3, 4] x, float[4, 6] w, float f) => (float[3, 6] y) {
    p = MatMul (x, w)
    y = Mul (p, f)
  })"),
              ElementsAre("MatMul", "Mul"));
  EXPECT_THAT(OpsAfterGemmFusion(
                  R"((double[3, 4] x, double[4, 6] w) => (double[3, 6] y) <double f = {0.1}> {
    p = MatMul (x, w)
    y = Mul (p, f)
  })"),
              ElementsAre("MatMul", "Mul"));
  EXPECT_THAT(
      OpsAfterGemmFusion(R"((float[1, 4] x, float[4, 6] w, float[3, 6] r) => (float[3, 6] y) {
    p = MatMul (x, w)
    y = Add (p, r)
  })"),
      ElementsAre("MatMul", "Add"));
  EXPECT_THAT(
      OpsAfterGemmFusion(R"((float[2, 3, 4] x, float[4, 6] w, float[6] b) => (float[2, 3, 6] y) {
    p = MatMul (x, w)
    y = Add (p, b)
  })"),
      ElementsAre("MatMul", "Add"));
  EXPECT_THAT(OpsAfterGemmFusion(R"((int32[3, 4] x, int32[4, 6] w, int32[6] b) => (int32[3, 6] y) {
    p = MatMul (x, w)
    y = Add (p, b)
  })"),
              ElementsAre("MatMul", "Add"));
}

}  // namespace
}  // namespace caesura::testing
