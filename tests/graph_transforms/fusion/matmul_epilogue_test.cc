// SPDX-License-Identifier: Apache-2.0
#include "graph_transforms/fusion/matmul_epilogue.h"
#include "graph_transforms/shapes/shape_inference_pass.h"
#include "tests/graph_transforms/ops_left.h"

namespace caesura::testing {
namespace {

using ::testing::ElementsAre;

std::vector<std::string> Left(const std::string& body) {
  Model model;
  model.graph = GraphOf(body);
  const auto records = RunPasses({MakeShapeInferencePass(), MakeMatMulEpiloguePass()}, model);
  EXPECT_TRUE(records.ok()) << records.status().ToString();
  std::vector<std::string> ops;
  for (const auto& node : model.graph->nodes()) ops.push_back(node->op_type());
  return ops;
}

// row_fusion_test.cc compares the numbers of fused and plain products.
TEST(MatMulEpilogue, TakesARowAndAMatrix) {
  EXPECT_THAT(Left(R"((float[3, 4] x, float[4, 6] w, float[6] b, float[3, 6] r) => (float[3, 6] y) {
    p = MatMul (x, w)
    q = Add (p, b)
    y = Add (q, r)
  })"),
              ElementsAre("FusedMatMul"));
}

TEST(MatMulEpilogue, TakesACastOfHalves) {
  EXPECT_THAT(Left(R"((float16[3, 4] x, float16[4, 6] w) => (float[3, 6] y) {
    p = MatMul (x, w)
    y = Cast <to = 1> (p)
  })"),
              ElementsAre("FusedMatMul"));
}

// A product that others read, one that is a graph output, and an Add that makes it larger.
TEST(MatMulEpilogue, OthersStay) {
  EXPECT_THAT(Left(R"((float[3, 4] x, float[4, 6] w, float[6] b) => (float[3, 6] y, float[3, 6] z) {
    p = MatMul (x, w)
    y = Add (p, b)
    z = Neg (p)
  })"),
              ElementsAre("MatMul", "Add", "Neg"));
  EXPECT_THAT(Left(R"((float[3, 4] x, float[4, 6] w, float[6] b) => (float[3, 6] y, float[3, 6] p) {
    p = MatMul (x, w)
    y = Add (p, b)
  })"),
              ElementsAre("MatMul", "Add"));
  EXPECT_THAT(Left(R"((float[1, 4] x, float[4, 6] w, float[3, 6] r) => (float[3, 6] y) {
    p = MatMul (x, w)
    y = Add (p, r)
  })"),
              ElementsAre("MatMul", "Add"));
}

}  // namespace
}  // namespace caesura::testing
