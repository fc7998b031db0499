// SPDX-License-Identifier: Apache-2.0
#include "core/onnx/inference/shape_inference.h"

#include <gtest/gtest.h>

#include <chrono>

#include "core/onnx/model_reader.h"
#include "core/graph/op_schema.h"

namespace caesura {
namespace {

std::string TypeIn(const Model& model, const std::string& name) {
  const Value* value = model.graph->FindValue(name);
  return value == nullptr ? "(no such value)" : value->type().ToString();
}

TEST(ShapeInferenceTest, FollowsShapeArithmetic) {
  Model model = ParseModelText(R"(<ir_version: 10, opset_import: ["" : 23]>
    g (float[batch, 3, 8] x) => (float y) {
      s = Shape (x)
      zero = Constant <value_ints = [0]> ()
      n = Gather (s, zero)
      rest = Constant <value_ints = [-1]> ()
      both = Concat <axis = 0> (n, rest)
      flat = Reshape (x, both)
      two = Constant <value_ints = [24, 5]> ()
      w = ConstantOfShape (two)
      h = MatMul (flat, w)
      y = Identity (h)
    })")
                    .value();
  EXPECT_EQ(TypeIn(model, "n"), "int64[1]");
  EXPECT_EQ(TypeIn(model, "flat"), "float32[batch, 24]");
  EXPECT_EQ(TypeIn(model, "h"), "float32[batch, 5]");
}

// The number of sizes is the rank, whatever computes them.
TEST(ShapeInferenceTest, SizesOfOursTellARank) {
  Model model = ParseModelText(R"(<ir_version: 10, opset_import: ["" : 23, "ai.caesura" : 1]>
    g (float[n, 2] dy, int64[1] rows, int64[1] from, int64[1] to, int64[1099511627776] many) => (float y, float z) {
      columns = Constant <value_ints = [2]> ()
      sizes = Concat <axis = 0> (rows, columns)
      dx = ai.caesura.SliceGrad (dy, sizes, from, to)
      wrong = ai.caesura.SliceGrad (dy, many, from, to)
      y = Identity (dx)
      z = Identity (wrong)
    })")
                    .value();
  const Value* dx = model.graph->FindValue("dx");
  ASSERT_TRUE(dx->type().shape);
  EXPECT_EQ(dx->type().shape->size(), 2u);
  EXPECT_FALSE(model.graph->FindValue("wrong")->type().shape);
}

TEST(ShapeInferenceTest, InfersBodies) {
  Model model = ParseModelText(R"(<ir_version: 10, opset_import: ["" : 23]>
    g (bool c, float[N, 4] x, int64 trips) => (float[N, 4] y, float[?, N, 4] all) {
      z = If (c) <then_branch = t () => (float[?, ?] a) { a = Relu (x) },
                  else_branch = e () => (float[?, ?] b) { b = Neg (x) }>
      y, all = Loop (trips, c, z) <body = loop (int64 i, bool go, v) => (go_on, w, s) {
        go_on = Identity (go) w = Neg (v) s = Abs (v) }>
    })")
                    .value();
  EXPECT_EQ(TypeIn(model, "z"), "float32[N, 4]");
  EXPECT_EQ(TypeIn(model, "y"), "float32[N, 4]");
  const Graph* body = model.graph->FindValue("y")->producer()->Subgraphs()[0];
  EXPECT_EQ(body->FindValue("s")->dtype(), DType::kFloat32);
}

// onnx's own inference would list the 2^40 elements of x.
TEST(ShapeInferenceTest, LongVectorsEndAtOnceInFunctionOps) {
  Model model = ParseModelText(R"(<ir_version: 10, opset_import: ["" : 18]>
    g (float[1099511627776] x) => (y) { y = MeanVarianceNormalization <axes = [0]> (x) })")
                    .value();
  EXPECT_EQ(TypeIn(model, "y"), "float32[1099511627776]");
}

TEST(ShapeInferenceTest, UnknownDimsGetSymbolsThatStay) {
  Model model = ParseModelText(R"(<ir_version: 10, opset_import: ["" : 23]>
    g (float[N] x) => (int64[1, M] y) { n = NonZero (x) m = Neg (n) y = Abs (m) })")
                    .value();
  const std::string type = TypeIn(model, "n");
  EXPECT_NE(type.find("unk__"), std::string::npos) << type;
  EXPECT_EQ(TypeIn(model, "m"), type);
  ASSERT_TRUE(InferShapes(model).ok());
  EXPECT_EQ(TypeIn(model, "n"), type);
}

TEST(ShapeInferenceTest, UnknownOpsStopNothing) {
  Model model = ParseModelText(R"(<ir_version: 10, opset_import: ["" : 23, "my" : 1]>
    g (float[2] x) => (float[2] y, float[2] z) { h = my.Op (x) y = Add (h, x) z = Neg (x) })")
                    .value();
  EXPECT_EQ(TypeIn(model, "h"), "unknown");
  EXPECT_EQ(TypeIn(model, "z"), "float32[2]");
}

TEST(ShapeInferenceTest, AllMisfitsAreListed) {
  Status status = ParseModelText(R"(<ir_version: 10, opset_import: ["" : 23]>
    g (float[2] x, float[3] w, int64[2] i) => (float[2] a, float[2] b) {
      [one] a = Add (x, w) [two] b = Mul (x, i) })")
                      .status();
  EXPECT_EQ(status.code(), StatusCode::kInvalidModel);
  EXPECT_NE(status.message().find("[Add 'one']"), std::string::npos) << status.ToString();
  EXPECT_NE(status.message().find("[Mul 'two']"), std::string::npos) << status.ToString();
}

TEST(ShapeInferenceTest, RunsAgainAfterAChange) {
  Model model = ParseModelText(R"(<ir_version: 10, opset_import: ["" : 23]>
    g (float[N, 4] x) => (float[N, 4] y) { h = Relu (x) y = Neg (h) })")
                    .value();
  model.graph->inputs()[0]->set_type(ValueType::Tensor(DType::kFloat32, Shape{7, 4}));
  ASSERT_TRUE(InferShapes(model).ok());
  EXPECT_EQ(TypeIn(model, "h"), "float32[7, 4]");
  EXPECT_EQ(TypeIn(model, "y"), "float32[7, 4]");
}

TEST(ShapeInferenceTest, OneNodeAtATime) {
  Graph graph;
  Value* x = graph.AddInput("x", ValueType::Tensor(DType::kFloat16, Shape{2, 3}));
  Node* transpose = graph.AddOp("Transpose", {x});
  ASSERT_TRUE(InferNodeTypes(graph, transpose).ok());
  EXPECT_EQ(transpose->output(0)->type().ToString(), "float16[3, 2]");
  Value* target = graph.AddInitializer("target", Tensor::Of<int64_t>({1}, {-1}));
  Node* reshape = graph.AddOp("Reshape", {transpose->output(0), target});
  ASSERT_TRUE(InferNodeTypes(graph, reshape).ok());
  EXPECT_EQ(reshape->output(0)->type().ToString(), "float16[6]");
}

TEST(ShapeInferenceTest, ASessionRemembersShapes) {
  Graph graph;
  ValueType type = ValueType::Tensor(DType::kFloat32, Shape{1, 6});
  (*type.shape)[0] = Dim{-1, "N"};
  Value* x = graph.AddInput("x", type);
  NodeTypeInference inference;
  auto add = [&](const char* op, std::vector<Value*> inputs) {
    Node* node = graph.AddOp(op, std::move(inputs));
    EXPECT_TRUE(inference.Infer(node).ok());
    return node->output(0);
  };
  Value* flat = add("Reshape", {x, graph.AddInitializer("flat", Tensor::Of<int64_t>({1}, {-1}))});
  Value* back = add("Reshape", {flat, add("Shape", {x})});
  EXPECT_EQ(back->type().ToString(), "float32[N, 6]");
}

TEST(ShapeInferenceTest, OpsOfOursHaveTypesToo) {
  Model model = ParseModelText(R"(<ir_version: 10, opset_import: ["" : 23, "ai.caesura" : 1]>
    g (float[N] dy, int64[2] x) => (float[N] a, int64[2] b) {
      h = ai.caesura.Copy (dy) j = ai.caesura.Detach (x) a = Neg (h) b = Abs (j) })")
                    .value();
  EXPECT_EQ(TypeIn(model, "h"), "float32[N]");
  EXPECT_EQ(TypeIn(model, "j"), "int64[2]");
  Status status = ParseModelText(R"(<ir_version: 10, opset_import: ["" : 23, "ai.caesura" : 1]>
    g (float[N] x) => (float[N] a) { a = ai.caesura.Copy (x, x, x) })")
                      .status();
  EXPECT_NE(status.message().find("3 inputs"), std::string::npos) << status.ToString();
}

TEST(ShapeInferenceTest, IsRoughlyLinear) {
  auto seconds = [](int nodes) {
    Graph graph;
    Value* x = graph.AddInput("x", ValueType::Tensor(DType::kFloat32, Shape{2, 3}));
    for (int i = 0; i < nodes; ++i) x = graph.AddOp("Relu", {x})->output(0);
    const auto start = std::chrono::steady_clock::now();
    EXPECT_TRUE(InferShapes(graph).ok());
    EXPECT_EQ(x->type().ToString(), "float32[2, 3]");
    return std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
  };
  seconds(100);
  EXPECT_LT(seconds(20000), 100 * std::max(seconds(2000), 1e-3))
      << "ten times the nodes; a loaded machine is allowed for";
}

}  // namespace
}  // namespace caesura
