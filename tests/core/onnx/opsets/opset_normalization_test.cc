// SPDX-License-Identifier: Apache-2.0
#include "core/onnx/opsets/opset_normalization.h"

#include <gtest/gtest.h>

#include "core/graph/graph_check.h"
#include "core/onnx/model_reader.h"
#include "core/graph/op_schema.h"

namespace caesura {
namespace {

Model Parse(int opset, const std::string& body) {
  const std::string head =
      "<ir_version: 7, opset_import: [\"\" : " + std::to_string(opset) + "]> g ";
  return ParseModelText(head + body).value();
}

Node* Find(const Model& model, const char* op_type) {
  for (const auto& node : model.graph->nodes()) {
    if (node->Is(op_type)) return node.get();
  }
  return nullptr;
}

// The elements of a constant input.
template <typename T>
std::vector<T> Constant(const Node& node, int input) {
  const Value* value = node.input(input);
  if (value == nullptr) return {};
  const Tensor* tensor = value->graph()->Initializer(value);
  if (tensor == nullptr && value->producer() != nullptr)
    tensor = value->producer()->FindAttr<Tensor>("value");
  return tensor == nullptr ? std::vector<T>() : tensor->ToVector<T>();
}

using Ints = std::vector<int64_t>;

struct Row {
  const char* name;
  int opset;
  const char* graph;
  const char* op_type;  // what stands there afterwards
  const char* output;   // the type of y
};

class OpsetNormalizationTest : public ::testing::TestWithParam<Row> {};

// Each row comes out at the newest version, valid, and with the same type.
void ExpectNewest(const Row& row, const std::string& graph) {
  Result<Model> parsed = ParseModelText(
      "<ir_version: 7, opset_import: [\"\" : " + std::to_string(row.opset) + "]> g " + graph);
  ASSERT_TRUE(parsed.ok()) << graph << "\n" << parsed.status().ToString();
  const Model& model = *parsed;
  EXPECT_TRUE(CheckGraph(*model.graph).ok()) << CheckGraph(*model.graph).ToString();
  EXPECT_EQ(model.opsets.at(""), LatestOpset());
  for (const auto& node : model.graph->nodes()) {
    EXPECT_EQ(node->since_version(), SinceVersion(node->op_type())) << node->Label();
  }
  EXPECT_NE(Find(model, row.op_type), nullptr);
  EXPECT_EQ(model.graph->FindValue("y")->type().ToString(), row.output);
  // And it can be written and read.
  Result<Model> again = ParseModelText(ModelText(model));
  ASSERT_TRUE(again.ok()) << again.status().ToString();
  EXPECT_EQ(again->graph->nodes().size(), model.graph->nodes().size());
}

TEST_P(OpsetNormalizationTest, ReachesTheNewestVersion) {
  ExpectNewest(GetParam(), GetParam().graph);
}

// The type of x is then not known before inference, which reads schemas of the version that the
// rules have led to so far.
TEST_P(OpsetNormalizationTest, ReachesItAfterAnotherNode) {
  std::string graph = GetParam().graph;
  const size_t input = graph.find("] x"), body = graph.find("{ ");
  if (input == std::string::npos) return;
  graph.insert(body + 2, "x = Identity (x0) ");
  graph.insert(input + 3, "0");
  ExpectNewest(GetParam(), graph);
}

constexpr Row kRows[] = {
    {"AddAxis", 6,
     "(float[2, 3, 4] x, float[3] w) => (y) { y = Add <axis = 1, broadcast = 1> (x, w) }",
     "Unsqueeze", "float32[2, 3, 4]"},
    {"AddSuffix", 6, "(float[2, 3, 4] x, float[3, 4] w) => (y) { y = Add <broadcast = 1> (x, w) }",
     "Add", "float32[2, 3, 4]"},
    {"PReluChannels", 6, "(float[2, 3, 4] x, float[3] w) => (y) { y = PRelu (x, w) }", "PRelu",
     "float32[2, 3, 4]"},
    {"GemmBroadcast", 6,
     "(float[2, 3] a, float[3, 4] b, float[4] c) => (y) { y = Gemm <broadcast = 1> (a, b, c) }",
     "Gemm", "float32[2, 4]"},
    {"CastByName", 5, "(float[2] x) => (y) { y = Cast <to = \"INT64\"> (x) }", "Cast", "int64[2]"},
    {"ConsumedInputs", 5, "(float[2] x) => (y) { y = Relu <consumed_inputs = [0]> (x) }", "Relu",
     "float32[2]"},
    {"ClipAttributes", 6, "(float16[2] x) => (y) { y = Clip <min = 0.5, max = 6.0> (x) }", "Clip",
     "float16[2]"},
    {"SoftmaxLast", 11, "(float[2, 3] x) => (y) { y = Softmax (x) }", "Softmax", "float32[2, 3]"},
    {"SoftmaxFlattened", 11, "(float[2, 3, 4] x) => (y) { y = LogSoftmax <axis = 1> (x) }",
     "Flatten", "float32[2, 3, 4]"},
    {"DropoutRatio", 10, "(float[2] x) => (y) { y = Dropout <ratio = 0.25> (x) }", "Dropout",
     "float32[2]"},
    {"DropoutTest", 6, "(float[2] x) => (y) { y = Dropout <ratio = 0.25, is_test = 1> (x) }",
     "Dropout", "float32[2]"},
    {"BatchNormTest", 8,
     "(float[2, 3, 4] x, float[3] s, float[3] b, float[3] m, float[3] v) => (y) { y = "
     "BatchNormalization <spatial "
     "= 1> (x, s, b, m, v) }",
     "BatchNormalization", "float32[2, 3, 4]"},
    {"BatchNormTraining", 9,
     "(float[2, 3, 4] x, float[3] s, float[3] b, float[3] m, float[3] v) => (y, float[3] rm, "
     "float[3] rv) "
     "{ y, rm, rv, sm, sv = BatchNormalization (x, s, b, m, v) }",
     "BatchNormalization", "float32[2, 3, 4]"},
    {"GroupNorm", 18,
     "(float[2, 6, 4] x, float[3] s, float[3] b) => (y) { y = GroupNormalization <num_groups = 3> "
     "(x, s, b) }",
     "GroupNormalization", "float32[2, 6, 4]"},
    {"GroupNormDynamic", 18,
     "(float[2, C, 4] x, float[3] s, float[3] b) => (y) { y = GroupNormalization <num_groups = 3> "
     "(x, s, b) }",
     "Div", "float32[2, C, 4]"},
    {"ReduceAxes", 13, "(float[2, 3] x) => (y) { y = ReduceMean <axes = [1], keepdims = 0> (x) }",
     "ReduceMean", "float32[2]"},
    {"ReduceAll", 13, "(float[2, 3] x) => (y) { y = ReduceMax <keepdims = 0> (x) }", "ReduceMax",
     "float32[]"},
    {"ReduceSumAxes", 11, "(float[2, 3] x) => (y) { y = ReduceSum <axes = [0]> (x) }", "ReduceSum",
     "float32[1, 3]"},
    {"Squeeze", 11, "(float[1, 3] x) => (y) { y = Squeeze <axes = [0]> (x) }", "Squeeze",
     "float32[3]"},
    {"Unsqueeze", 11, "(float[3] x) => (y) { y = Unsqueeze <axes = [0, 2]> (x) }", "Unsqueeze",
     "float32[1, 3, 1]"},
    {"ReshapeAttribute", 4, "(float[2, 3] x) => (y) { y = Reshape <shape = [3, -1]> (x) }",
     "Reshape", "float32[3, 2]"},
    {"PadAttributes", 10, "(float[2] x) => (y) { y = Pad <pads = [1, 2], value = 3.0> (x) }", "Pad",
     "float32[5]"},
    {"PadPaddings", 1, "(float[2] x) => (y) { y = Pad <paddings = [1, 2]> (x) }", "Pad",
     "float32[5]"},
    {"SliceAttributes", 9,
     "(float[4, 5] x) => (y) { y = Slice <axes = [1], starts = [1], ends = [3]> (x) }", "Slice",
     "float32[4, 2]"},
    {"SplitSizes", 11, "(float[5] x) => (y, z) { y, z = Split <split = [2, 3]> (x) }", "Split",
     "float32[2]"},
    {"SplitEven", 13, "(float[4] x) => (y, z) { y, z = Split (x) }", "Split", "float32[2]"},
    {"ConcatDefault", 3, "(float[2, 3] x) => (y) { y = Concat (x, x) }", "Concat", "float32[2, 6]"},
    {"TopKAttribute", 9, "(float[2, 9] x) => (y, i) { y, i = TopK <k = 4> (x) }", "TopK",
     "float32[2, 4]"},
    {"ScatterRenamed", 9, "(float[3] x, int64[1] i, float[1] u) => (y) { y = Scatter (x, i, u) }",
     "ScatterElements", "float32[3]"},
    {"UpsampleScales", 8,
     "(float[1, 1, 2, 2] x) => (y) { y = Upsample <scales = [1.0, 1.0, 2.0, 3.0]> (x) }", "Resize",
     "float32[1, 1, 4, 6]"},
    {"UpsampleHeightWidth", 6,
     "(float[1, 1, 2, 2] x) => (y) { y = Upsample <height_scale = 2.0, width_scale = 3.0, mode = "
     "\"bilinear\"> "
     "(x) }",
     "Resize", "float32[1, 1, 4, 6]"},
    {"ResizeTen", 10,
     "(float[1, 1, 2, 2] x) => (y) <float[4] s = {1, 1, 2, 2}> { y = Resize (x, s) }", "Resize",
     "float32[1, 1, 4, 4]"},
    {"ResizeDown", 10,
     "(float[1, 1, 2, 4] x) => (y) <float[4] s = {1, 1, 0.6, 0.6}> { y = Resize (x, s) }", "Resize",
     "float32[1, 1, 1, 2]"},
    {"ResizeUpAndDown", 10,
     "(float[1, 1, 2, 4] x) => (y) <float[4] s = {1, 1, 3, 0.6}> { y = Resize (x, s) }", "Resize",
     "float32[1, 1, 6, 2]"},
    {"OneHot", 9,
     "(int64[3] x) => (y) <int64 d = {4}, float[2] v = {0, 1}> { y = OneHot (x, d, v) }", "Where",
     "float32[3, 4]"},
    {"DropoutMask", 7, "(float16[2] x) => (h, y) { h, y = Dropout (x) }", "CastLike", "float16[2]"},
    {"DropoutMaskTest", 6, "(double[2] x) => (h, y) { h, y = Dropout <is_test = 1> (x) }",
     "CastLike", "float64[2]"},
    {"ResizeEmptyInputs", 11,
     "(float[1, 1, 2, 2] x) => (y) <float[0] none = {}, int64[4] s = {1, 1, 5, 6}> { y = Resize "
     "(x, none, none, "
     "s) }",
     "Resize", "float32[1, 1, 5, 6]"},
    {"RoiAlign", 10,
     "(float[1, 2, 8, 8] x, float[3, 4] r, int64[3] b) => (y) { y = RoiAlign <output_height = 2, "
     "output_width = "
     "2> (x, r, b) }",
     "RoiAlign", "float32[3, 2, 2, 2]"},
    {"GridSample", 16,
     "(float[1, 2, 8, 8] x, float[1, 3, 3, 2] g) => (y) { y = GridSample <mode = \"bicubic\"> (x, "
     "g) }",
     "GridSample", "float32[1, 2, 3, 3]"},
    {"Dft", 17, "(float[1, 8, 1] x) => (y) { y = DFT <axis = 1> (x) }", "DFT", "float32[1, 8, 2]"},
    {"LpPool", 1,
     "(float[1, 1, 4, 4] x) => (y) { y = LpPool <kernel_shape = [2, 2], p = 3.0> (x) }", "LpPool",
     "float32[1, 1, 3, 3]"},
    {"LstmSequence", 6,
     "(float[5, 1, 3] x, float[1, 8, 3] w, float[1, 8, 2] r) => (y) { y = LSTM <hidden_size = 2, "
     "output_sequence "
     "= 1> (x, w, r) }",
     "LSTM", "float32[5, 1, 1, 2]"},
    {"TileAxis", 5, "(float[2, 3] x) => (y) <float t = {2}, float a = {1}> { y = Tile (x, t, a) }",
     "Tile", "float32[2, 6]"},
    {"SeluDefaults", 5, "(float[2] x) => (y) { y = Selu (x) }", "Selu", "float32[2]"},
    {"ConstantInts", 12, "() => (y) { y = Constant <value_ints = [1, 2]> () }", "Constant",
     "int64[2]"},
    {"InsideOfBodies", 11,
     "(bool c, float[1, 3] x) => (y) { y = If (c) <then_branch = t () => (float[3] a) { a = "
     "Squeeze <axes = [0]> "
     "(x) }, "
     "else_branch = e () => (float[3] b) { b = Squeeze <axes = [0]> (x) }> }",
     "If", "float32[3]"},
};

INSTANTIATE_TEST_SUITE_P(Table, OpsetNormalizationTest, ::testing::ValuesIn(kRows),
                         [](const auto& row) { return row.param.name; });

TEST(OpsetNormalizationTest, ReductionsOfAllVersionsTakeTheirAxesAlong) {
  for (const char* op : {"ReduceL1", "ReduceL2", "ReduceLogSum", "ReduceLogSumExp", "ReduceMax",
                         "ReduceMean", "ReduceMin", "ReduceProd", "ReduceSum", "ReduceSumSquare"}) {
    for (const int opset : {1, 5, 11, 12, 13, 17}) {
      if (std::string(op) == "ReduceSum" && opset >= 13) continue;  // has them as an input
      for (const char* type : {"float", "double", "int64"}) {
        for (const char* before : {"y = ", "h = Identity (x) y = "}) {
          const bool behind = before[0] == 'h';
          const std::string graph = std::string("(") + type + "[2, 3] x) => (y) { " + before + op +
                                    " <axes = [1], keepdims = 0> (" + (behind ? "h" : "x") + ") }";
          const std::string head =
              "<ir_version: 7, opset_import: [\"\" : " + std::to_string(opset) + "]> g ";
          Result<Model> model = ParseModelText(head + graph);
          ASSERT_TRUE(model.ok()) << opset << " " << graph << "\n" << model.status().ToString();
          EXPECT_EQ(Constant<int64_t>(*Find(*model, op), 1), Ints{1}) << opset << " " << graph;
        }
      }
    }
  }
}

TEST(OpsetNormalizationTest, ValuesMoveToTheRightInputs) {
  Model slice =
      Parse(9, "(float[4, 5] x) => (y) { y = Slice <starts = [1, 0], ends = [3, 2]> (x) }");
  EXPECT_EQ(Constant<int64_t>(*Find(slice, "Slice"), 1), (Ints{1, 0}));
  EXPECT_EQ(Constant<int64_t>(*Find(slice, "Slice"), 2), (Ints{3, 2}));
  EXPECT_EQ(Find(slice, "Slice")->input(3), nullptr);
  Model clip = Parse(6, "(float[2] x) => (y) { y = Clip <max = 6.0> (x) }");
  EXPECT_EQ(Find(clip, "Clip")->input(1), nullptr);
  EXPECT_EQ(Constant<float>(*Find(clip, "Clip"), 2), std::vector<float>{6});
  Model add = Parse(
      6, "(float[2, 3, 4] x, float[3] w) => (y) { y = Add <axis = 1, broadcast = 1> (x, w) }");
  EXPECT_EQ(Constant<int64_t>(*Find(add, "Unsqueeze"), 1), (Ints{1}));
  Model split = Parse(13, "(float[4] x) => (y, z) { y, z = Split (x) }");
  EXPECT_EQ(Find(split, "Split")->Attr<int64_t>("num_outputs", 0), 2);
  Model batch_norm =
      Parse(9,
            "(float[2, 3] x, float[3] s, float[3] b, float[3] m, float[3] v) => (y, float[3] rm) "
            "{ y, rm, rv, sm, sv = BatchNormalization (x, s, b, m, v) }");
  EXPECT_EQ(Find(batch_norm, "BatchNormalization")->Attr<int64_t>("training_mode", 0), 1);
  EXPECT_EQ(Find(batch_norm, "BatchNormalization")->outputs().size(), 3u);
  Model resize =
      Parse(10, "(float[1, 1, 2, 2] x) => (y) <float[4] s = {1, 1, 2, 2}> { y = Resize (x, s) }");
  EXPECT_EQ(Find(resize, "Resize")->Attr<std::string>("coordinate_transformation_mode", ""),
            "asymmetric");
  EXPECT_EQ(Constant<float>(*Find(resize, "Resize"), 2), (std::vector<float>{1, 1, 2, 2}));
}

TEST(OpsetNormalizationTest, NewNodesStandInFrontAndKeepTheSource) {
  Model model = Parse(11,
                      "(float[2, 3, 4] x) => (y) { [first] h = Neg (x) [soft] s = Softmax <axis = "
                      "1> (h) [last] y = Relu (s) }");
  EXPECT_EQ(model.graph->nodes().front()->name(), "first");
  EXPECT_EQ(model.graph->nodes().back()->name(), "last");
}

TEST(OpsetNormalizationTest, WhatCannotBeRewrittenKeepsItsVersion) {
  Model model = Parse(8,
                      "(float[2, 3] x, float[3] s, float[3] b, float[3] m, float[3] v) => (y) "
                      "{ y = BatchNormalization <spatial = 0> (x, s, b, m, v) }");
  EXPECT_EQ(Find(model, "BatchNormalization")->since_version(), 7);
  Model tile = Parse(5, "(float[2, 3] x, float t, float a) => (y) { y = Tile (x, t, a) }");
  EXPECT_EQ(Find(tile, "Tile")->since_version(), 1);
}

}  // namespace
}  // namespace caesura
