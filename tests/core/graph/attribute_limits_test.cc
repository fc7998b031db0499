// SPDX-License-Identifier: Apache-2.0
#include "core/graph/attribute_limits.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <limits>

#include "core/graph/graph.h"
#include "core/onnx/model_reader.h"
#include "core/onnx/inference/shape_inference.h"

namespace caesura {
namespace {

using ::testing::HasSubstr;

constexpr int64_t kLeast = std::numeric_limits<int64_t>::min(),
                  kMost = std::numeric_limits<int64_t>::max();

TEST(AttributeLimits, AreAskedForEveryInteger) {
  EXPECT_EQ(AttributeFault(
                "", {{"axis", int64_t{-1}}, {"axes", std::vector<int64_t>{0, 1}}, {"alpha", 1.0f}}),
            "");
  EXPECT_THAT(
      AttributeFault("", {{"axis", kMost}}),
      HasSubstr("attribute 'axis': expected -1073741824 to 1073741824, got 9223372036854775807"));
  EXPECT_THAT(AttributeFault("ai.onnx.ml", {{"ngram_counts", std::vector<int64_t>{0, kLeast}}}),
              HasSubstr("got -9223"));
  EXPECT_THAT(AttributeFault("", {{"batch_dims", int64_t{-1}}}), HasSubstr("expected 0 to"));
  EXPECT_THAT(AttributeFault("", {{"strides", std::vector<int64_t>{1, 0}}}),
              HasSubstr("expected 1 to"));
  EXPECT_THAT(AttributeFault(kCaesuraDomain, {{"axis", kMost}}), HasSubstr("axis"));
}

// Labels, vocabularies and ends of ranges are compared, not calculated with; a user's op means what
// it wants.
TEST(AttributeLimits, LeaveValuesAndUsersAlone) {
  EXPECT_EQ(AttributeFault("ai.onnx.ml", {{"keys_int64s", std::vector<int64_t>{kLeast, kMost}}}),
            "");
  EXPECT_EQ(AttributeFault("", {{"value_int", kMost}, {"end", kMost}, {"ignore_index", kLeast}}),
            "");
  EXPECT_EQ(AttributeFault("my.domain", {{"axis", kMost}}), "");
}

TEST(AttributeLimits, AreCheckedWhenAModelIsRead) {
  const Status status =
      ParseModelText(
          "<ir_version: 10, opset_import: [\"\" : 9]> g (float[2,3] x) => (float[N,M] y) "
          "{ [n] y = Slice <starts = [0], ends = [1], axes = [9223372036854775807]> (x) }")
          .status();
  EXPECT_EQ(status.code(), StatusCode::kInvalidModel);
  EXPECT_THAT(status.message(), HasSubstr("[Slice 'n'] attribute 'axes'"));
}

// Graphs that no file has been read for.
TEST(AttributeLimits, GuardInference) {
  Graph graph("g");
  const ValueType type = ValueType::Tensor(DType::kFloat32, Shape{2, 3});
  Node* node =
      graph.AddNode("LayerNormalization", {graph.AddInput("x", type), graph.AddInput("s", type)},
                    {graph.AddValue("y"), graph.AddValue("m")}, {{"axis", kMost}}, "", "n");
  node->set_since_version(17);
  EXPECT_THAT(InferNodeTypes(graph, node).message(), HasSubstr("attribute 'axis'"));
}

// Products of dims that are known count, in what is declared and in what is inferred.
TEST(AttributeLimits, DimsAreLimitedToo) {
  const auto message = [](const std::string& body) {
    return ParseModelText("<ir_version: 10, opset_import: [\"\" : 21]> g " + body)
        .status()
        .message();
  };
  EXPECT_THAT(message("(float[4294967296, N, 4294967296] x) => (y) { y = Relu (x) }"),
              HasSubstr("input 'x'"));
  EXPECT_THAT(
      message(
          "(float[1] x) => (y) <int64[2] s = {4294967296, 4294967296}> { [n] y = Expand (x, s) }"),
      HasSubstr("[Expand 'n'] makes 'y'"));
}

}  // namespace
}  // namespace caesura
