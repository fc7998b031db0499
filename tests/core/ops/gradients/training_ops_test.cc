// SPDX-License-Identifier: Apache-2.0
// Types of the outputs of training ops that follow from more than one input.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <utility>

#include "core/onnx/model_reader.h"
#include "core/onnx/inference/shape_inference.h"

namespace caesura {
namespace {

// The types of the graph's outputs, after inference.
std::vector<std::string> TypesIn(const std::string& graph) {
  Model model =
      ParseModelText("<ir_version: 10, opset_import: [\"\" : 23, \"ai.caesura\" : 1]>\n" + graph)
          .value();
  const Status status = InferShapes(*model.graph);
  EXPECT_TRUE(status.ok()) << status.ToString();
  std::vector<std::string> out;
  for (const Value* output : model.graph->outputs()) out.push_back(output->type().ToString());
  return out;
}

TEST(TrainingOpTypes, AttentionOfHeads) {
  EXPECT_EQ(
      TypesIn(R"(g (float[N, 8, T, 32] q, float[N, 2, S, 32] k, float[N, 2, S, 16] v) => (y, lse) {
    y, , , , lse = ai.caesura.AttentionTraining (q, k, v)
  })"),
      (std::vector<std::string>{"float32[N, 8, T, 16]", "float32[N, 8, T]"}));
}

TEST(TrainingOpTypes, AttentionOfRows) {
  EXPECT_EQ(TypesIn(R"(g (double[N, T, 256] q, double[N, S, 64] k, double[N, S, 32] v) => (y, lse) {
    y, , , , lse = ai.caesura.AttentionTraining <q_num_heads = 8, kv_num_heads = 2> (q, k, v)
  })"),
            (std::vector<std::string>{"float64[N, T, 128]", "float64[N, 8, T]"}));
}

TEST(TrainingOpTypes, CrossEntropy) {
  EXPECT_EQ(TypesIn(R"(g (float16[N, 10, T] x, int64[N, T] l) => (loss, log_prob, lse) {
    loss, log_prob, lse = ai.caesura.SoftmaxCrossEntropyLossTraining (x, l)
  })"),
            (std::vector<std::string>{"float16[]", "float16[N, 10, T]", "float32[N, T]"}));
  EXPECT_EQ(TypesIn(R"(g (double[N, 10] x, int64[N] l) => (loss, lse) {
    loss, , lse = ai.caesura.SoftmaxCrossEntropyLossTraining <reduction = "none"> (x, l)
  })"),
            (std::vector<std::string>{"float64[N]", "float64[N]"}));
}

// A step that was written when the op took log-probabilities, with and without weights.
TEST(TrainingOpSchemas, CrossEntropyGradWithoutItsSumsIsRefused) {
  const std::pair<const char*, const char*> cases[] = {{"d, x, l", "has 3 inputs"},
                                                       {"d, x, l, w", "has 4 inputs"}};
  for (const auto& [inputs, fault] : cases) {
    const Status status =
        ParseModelText(
            "<ir_version: 10, opset_import: [\"\" : 23, \"ai.caesura\" : 1]>\n"
            "g (float d, float[3, 4] x, int64[3] l, float[4] w) => (float[3, 4] y) {"
            "y = ai.caesura.SoftmaxCrossEntropyLossGrad (" +
            std::string(inputs) + ") }")
            .status();
    EXPECT_THAT(status.message(), ::testing::HasSubstr("SoftmaxCrossEntropyLossGrad"));
    EXPECT_THAT(status.message(), ::testing::HasSubstr(fault));
    EXPECT_THAT(status.message(), ::testing::HasSubstr("the op takes 5 to 5"));
  }
}

}  // namespace
}  // namespace caesura
