// SPDX-License-Identifier: Apache-2.0
#include "graph_transforms/precision/mixed_precision.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "core/onnx/model_reader.h"
#include "core/onnx/inference/shape_inference.h"
#include "graph_transforms/pipeline.h"
#include "graph_transforms/simplify/dead_node_elimination.h"

namespace caesura {
namespace {

using ::testing::ElementsAre;

Model Parse(const std::string& text) {
  Model model =
      ParseModelText("<ir_version: 10, opset_import: [\"\": 23, \"ai.caesura\": 1]>\n" + text)
          .value();
  EXPECT_TRUE(InferShapes(model).ok());
  return model;
}

// "MatMul:bfloat16" for each node: its op and the dtype of its first output.
std::vector<std::string> Nodes(const Model& model) {
  std::vector<std::string> out;
  for (const auto& node : model.graph->nodes()) {
    out.push_back(node->op_type() + ":" + DTypeName(node->output(0)->dtype()));
  }
  return out;
}

Model Mixed(const std::string& text) {
  Model model = Parse(text);
  const auto records =
      RunPasses({MakeMixedPrecisionPass(DType::kBFloat16), MakeDeadNodeEliminationPass()}, model);
  EXPECT_TRUE(records.ok()) << records.status().ToString();
  return model;
}

TEST(MixedPrecision, ProductsAndWhatFollowsThemAreHalfNormsAreNot) {
  const Model model =
      Mixed(R"(g (float[N,8] x, float[8,8] w, float[8] b, float[8] s) => (float[N,8] y)
    <float[8] b2 = {0, 1, 2, 3, 4, 5, 6, 7}> {
      p = MatMul (x, w) q = Add (p, b2) r = Relu (q) n = LayerNormalization (r, s, b) y = MatMul (n, w) })");
  // x and w are cast, then the bias; the norm reads float32, and the output is what it was.
  EXPECT_THAT(Nodes(model), ElementsAre("Cast:bfloat16", "Cast:bfloat16", "MatMul:bfloat16",
                                        "Cast:bfloat16", "Add:bfloat16", "Relu:bfloat16",
                                        "Cast:float32", "LayerNormalization:float32",
                                        "Cast:bfloat16", "MatMul:bfloat16", "Cast:float32"));
  EXPECT_EQ(model.graph->outputs()[0]->name(), "y");
  EXPECT_EQ(model.graph->outputs()[0]->dtype(), DType::kFloat32);
}

TEST(MixedPrecision, SumsWithFloat32AreFloat32) {
  const Model model = Mixed(
      R"(g (float[4,8] x, float[8,8] w) => (float[4,8] y) { p = MatMul (x, w) y = Add (x, p) })");
  EXPECT_THAT(Nodes(model), ElementsAre("Cast:bfloat16", "Cast:bfloat16", "MatMul:bfloat16",
                                        "Cast:float32", "Add:float32"));
}

TEST(MixedPrecision, WeightsAreCastOnceAheadOfTheirViews) {
  const Model model = Mixed(R"(g (float[4,8] x, float[8,8] w) => (float[4,8] y, float[8,8] z) {
      t = Transpose <perm = [1, 0]> (w) p = MatMul (x, t) y = MatMul (p, w) z = Exp (t) })");
  EXPECT_THAT(Nodes(model), ElementsAre("Transpose:float32", "Cast:bfloat16", "Cast:bfloat16",
                                        "Transpose:bfloat16", "MatMul:bfloat16", "MatMul:bfloat16",
                                        "Cast:float32", "Exp:float32"));
}

TEST(MixedPrecision, BodiesReadFloat32) {
  const Model model = Mixed(R"(g (float[4,8] x, float[8,8] w, bool c) => (float[4,8] y) {
      p = MatMul (x, w)
      y = If (c) <then_branch = a () => (float[4,8] u) { u = Exp (p) },
                  else_branch = b () => (float[4,8] v) { v = Neg (p) }> })");
  EXPECT_THAT(Nodes(model), ElementsAre("Cast:bfloat16", "Cast:bfloat16", "MatMul:bfloat16",
                                        "Cast:float32", "If:float32"));
}

TEST(MixedPrecision, OtherTypesStay) {
  Model model = Parse(
      R"(g (double[4,8] x, double[8,8] w) => (double[4,8] y) { p = MatMul (x, w) y = Relu (p) })");
  const auto records = RunPasses({MakeMixedPrecisionPass(DType::kBFloat16)}, model);
  ASSERT_TRUE(records.ok());
  EXPECT_FALSE(records->front().changed);
}

// A bias, the cast to float32 and a float32 residual all go into one product; a gradient's sum is
// float32 at once.
TEST(MixedPrecision, CastsBecomePartOfProductsAndSums) {
  Model model = Mixed(R"(g (float[64,40] x, float[40,4] w, float[64,4] r) => (float[64,4] y)
    <float[4] b = {1, 2, 3, 4}> { p = MatMul (x, w) q = Add (p, b) y = Add (q, r) })");
  ASSERT_TRUE(RunPasses(FusionPasses(), model).ok());
  EXPECT_THAT(Nodes(model), ElementsAre("Cast:bfloat16", "Cast:bfloat16", "Cast:bfloat16",
                                        "FusedMatMul:float32"));
  Model sum = Parse(R"(g (bfloat16[64,24] dy, float[24] b) => (float[24] db) {
      s = Shape (b) d = ai.caesura.SumTo (dy, s) db = Cast <to = 1> (d) })");
  ASSERT_TRUE(RunPasses(FusionPasses(), sum).ok());
  EXPECT_THAT(Nodes(sum), ElementsAre("Shape:int64", "SumTo:float32"));
}

// The gradient of a transposed weight: the cast passes the transpose and becomes part of the
// product.
TEST(MixedPrecision, CastsGoAheadOfViews) {
  Model model =
      Parse(R"(g (bfloat16[64,24] dy, bfloat16[64,40] x) => (float[960] dw) <int64[1] flat = {-1}> {
      p = ai.caesura.FusedMatMul <transA = 1> (x, dy) t = Transpose <perm = [1, 0]> (p) r = Reshape (t, flat)
      dw = Cast <to = 1> (r) })");
  ASSERT_TRUE(RunPasses(FusionPasses(), model).ok());
  EXPECT_THAT(Nodes(model),
              ElementsAre("FusedMatMul:float32", "Transpose:float32", "Reshape:float32"));
}

TEST(MixedPrecision, ShapesAreReadOfWhatIsThere) {
  const Model model = Mixed(R"(g (float[N,8] x, float[8,8] w) => (float[N,8] y, int64[2] s) {
      p = MatMul (x, w) s = Shape (p) y = Exp (p) })");
  EXPECT_THAT(Nodes(model), ElementsAre("Cast:bfloat16", "Cast:bfloat16", "MatMul:bfloat16",
                                        "Cast:float32", "Shape:int64", "Exp:float32"));
  EXPECT_EQ(model.graph->nodes()[4]->input(0)->dtype(), DType::kBFloat16);
}

}  // namespace
}  // namespace caesura
