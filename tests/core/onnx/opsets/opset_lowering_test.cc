// SPDX-License-Identifier: Apache-2.0
#include "core/onnx/opsets/opset_lowering.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>

#include "core/base/status_macros.h"
#include "core/onnx/model_reader.h"
#include "core/onnx/model_writer.h"
#include "tests/graph_transforms/beside_kernels.h"
#include "tests/temporary_folder.h"

namespace caesura::testing {
namespace {

using ::testing::ElementsAre;
using ::testing::FloatNear;
using ::testing::HasSubstr;
using ::testing::Pointwise;

Model Newest(const std::string& graph) {
  return ParseModelText("<ir_version: 10, opset_import: [\"\" : 23]> g " + graph).value();
}

Status Write(const std::string& graph, int opset, const std::string& path) {
  Model model = Newest(graph);
  RETURN_IF_ERROR(LowerOpset(*model.graph, opset));
  return WriteModel(model, path, {.external_above = {}, .opset = opset});
}

// The nodes of the file, which computes what the model did.
std::vector<std::string> OpsAt(int opset, const std::string& graph) {
  SCOPED_TRACE(graph);
  const TemporaryFolder folder;
  const Status written = Write(graph, opset, folder.path("m.onnx"));
  EXPECT_TRUE(written.ok()) << written.ToString();
  const Result<Model> as_it_is =
      ReadModel(folder.path("m.onnx"), {.external_data_folder = {}, .normalise_opsets = false});
  const Result<Model> read = ReadModel(folder.path("m.onnx"));
  if (!as_it_is.ok() || !read.ok()) {
    ADD_FAILURE() << as_it_is.status().ToString() << read.status().ToString();
    return {};
  }
  EXPECT_EQ(as_it_is->opsets.at(""), opset);
  const Model model = Newest(graph);
  const Values feeds = FeedsOf(*model.graph);
  const Values expected = RunWithTrainingKernels(model.graph, feeds);
  const Values found = RunWithTrainingKernels(read->graph, feeds);
  EXPECT_EQ(expected.size(), found.size());
  for (size_t i = 0; i < expected.size() && i < found.size(); ++i) {
    const Tensor &was = expected[i].tensor(), &is = found[i].tensor();
    EXPECT_EQ(is.shape(), was.shape()) << "output " << i;
    if (was.dtype() != DType::kFloat32) {
      EXPECT_TRUE(SameBits(found[i], expected[i])) << "output " << i;
      continue;
    }
    EXPECT_THAT(is.ToVector<float>(), Pointwise(FloatNear(1e-6F), was.ToVector<float>()));
  }
  std::vector<std::string> ops;
  for (const auto& node : as_it_is->graph->nodes()) ops.push_back(node->op_type());
  return ops;
}

TEST(OpsetLowering, AxesOfReductionsAreAttributes) {
  EXPECT_THAT(OpsAt(17,
                    "(float[N,3] x) => (float[1,3] y) <int64[1] axes = {0}> "
                    "{ y = ReduceMean (x, axes) }"),
              ElementsAre("ReduceMean"));
  EXPECT_THAT(OpsAt(17, "(float[N,3] x) => (float y) { y = ReduceMax <keepdims = 0> (x) }"),
              ElementsAre("ReduceMax"));
  EXPECT_THAT(OpsAt(17,
                    "(bool[N,3] x) => (bool[N,1] y) <int64[1] axes = {-1}> "
                    "{ y = ReduceMin (x, axes) }"),
              ElementsAre("Cast", "ReduceMin", "Cast"));
}

TEST(OpsetLowering, PartsOfSplitAreEqual) {
  EXPECT_THAT(OpsAt(17,
                    "(float[N,6] x) => (float[N,2] a, float[N,2] b, float[N,2] c) "
                    "{ a, b, c = Split <axis = -1, num_outputs = 3> (x) }"),
              ElementsAre("Split"));
}

// In bodies of control flow, too.
TEST(OpsetLowering, FunctionsBecomeTheirBodies) {
  for (const std::string& op :
       OpsAt(17, "(float[N,4] x) => (float[N,4] y) { y = Gelu <approximate = \"tanh\"> (x) }"))
    EXPECT_NE(op, "Gelu");
  EXPECT_THAT(OpsAt(17,
                    "(bool yes, float[N,4] x) => (float[N,4] y) {"
                    " y = If (yes) <then_branch = t () => (float[N,4] a) { a = Gelu (x) },"
                    " else_branch = e () => (float[N,4] b) { b = Relu (x) }> }"),
              ElementsAre("If"));
}

// All nodes that the opset does not have are named, with where they come from.
TEST(OpsetLowering, RefusesTheOthersAtOnceAndWritesNothing) {
  const TemporaryFolder folder;
  const Status refused = Write(R"((float[N,3] x, int64[1] axes, int32[2] i) => (
      float[1,3] y, int32[2] z, float[1,3] w, float[1,3] v) {
    y = ReduceMean (x, axes)
    z = BitwiseNot (i)
    w, v = Split <num_outputs = 2> (x)
  })",
                               17, folder.path("m.onnx"));
  EXPECT_THAT(refused.message(), HasSubstr("opset 17 does not have 3 node(s)"));
  for (const char* op : {"[ReduceMean", "[BitwiseNot", "[Split"})
    EXPECT_THAT(refused.message(), HasSubstr(op));
  EXPECT_FALSE(std::filesystem::exists(folder.path("m.onnx")));
}

TEST(OpsetLowering, TheIrVersionIsThatOfTheOpset) {
  const TemporaryFolder folder;
  for (const auto& [opset, ir] : {std::pair(13, 7), {17, 8}, {20, 9}, {22, 10}}) {
    ASSERT_TRUE(
        Write("(float[2] x) => (float[2] y) { y = Relu (x) }", opset, folder.path("m.onnx")).ok());
    std::ifstream file(folder.path("m.onnx"), std::ios::binary);
    std::string head(2, '\0');  // field 1, a varint
    file.read(head.data(), 2);
    EXPECT_EQ(head[1], ir) << opset;
  }
}

}  // namespace
}  // namespace caesura::testing
