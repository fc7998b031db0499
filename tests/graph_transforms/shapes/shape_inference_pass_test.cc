// SPDX-License-Identifier: Apache-2.0
#include "graph_transforms/shapes/shape_inference_pass.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "core/onnx/model_reader.h"

namespace caesura {
namespace {

TEST(ShapeInferencePass, FillsInWhatIsNotKnown) {
  Model model = ParseModelText(R"(<ir_version: 10, opset_import: ["" : 20]>
      g (float[n, 4] x) => (y) <int64[2] shape = {-1, 2}> {
        a = Transpose (x) b = Reshape (a, shape) y = ReduceSum <keepdims = 0> (b) })")
                    .value();
  // Nodes and edges are as they were.
  EXPECT_FALSE(MakeShapeInferencePass()->Run(model).value());
  EXPECT_EQ(model.graph->FindValue("a")->type().ToString(), "float32[4, n]");
  EXPECT_EQ(model.graph->FindValue("b")->type().dtype, DType::kFloat32);
  EXPECT_EQ(model.graph->FindValue("b")->type().shape->size(), 2u);
  EXPECT_EQ(model.graph->FindValue("y")->type().ToString(), "float32[]");
}

// A pass has put another node in: what was inferred before is inferred anew.
TEST(ShapeInferencePass, FollowsAChange) {
  Model model = ParseModelText(R"(<ir_version: 10, opset_import: ["" : 20]>
      g (float[3, 4] x) => (float[u, v] y) { a = Neg (x) y = Abs (a) })")
                    .value();
  Graph& graph = *model.graph;
  ASSERT_FALSE(MakeShapeInferencePass()->Run(model).value());
  Node* turned = graph.AddOp("Transpose", {graph.FindValue("a")});
  graph.nodes()[1]->SetInput(0, turned->output(0));
  ASSERT_TRUE(graph.SortTopologically().ok());
  EXPECT_EQ(turned->output(0)->type().dtype, DType::kUndefined);
  ASSERT_FALSE(MakeShapeInferencePass()->Run(model).value());
  EXPECT_EQ(turned->output(0)->type().ToString(), "float32[4, 3]");
}

// Kernels look at the tensors that come: a node that disagrees is no error of the pass.
TEST(ShapeInferencePass, NodesThatDisagreeStopNothing) {
  Model model = ParseModelText(R"(<ir_version: 10, opset_import: ["" : 20]>
      g (float[3, 4] x, float[4, 6] w, float[5, 6] v) => (y, z) {
        y = MatMul (x, w) z = Neg (v) })")
                    .value();
  Graph& graph = *model.graph;
  graph.nodes()[0]->SetInput(1, graph.FindValue("v"));
  graph.nodes()[1]->SetInput(0, graph.FindValue("x"));
  EXPECT_FALSE(MakeShapeInferencePass()->Run(model).value());
  EXPECT_EQ(graph.FindValue("z")->type().ToString(), "float32[3, 4]");
}

}  // namespace
}  // namespace caesura
