// SPDX-License-Identifier: Apache-2.0
// Steps as plain ONNX files. Whole steps are compared in
// tests/python/sessions/export_training_test.py.
#include "training/session/export_training.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>

#include "tests/temporary_folder.h"
#include "tests/training/session/session_parts.h"

namespace caesura::testing {
namespace {

using ::testing::Contains;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

std::vector<std::string> NamesOf(const std::vector<Value*>& values) {
  std::vector<std::string> names;
  for (const Value* value : values) names.push_back(value->name());
  return names;
}

TEST(ExportTraining, WritesOnnxOperatorsAndWhatTheSessionHas) {
  const TemporaryFolder folder;
  PartsOfASession parts;
  ASSERT_TRUE(parts.Step().ok());
  const Status written = ExportTraining(parts.all(), folder.path("step.onnx"), {});
  ASSERT_TRUE(written.ok()) << written.ToString();
  const Result<Model> model = ReadModel(folder.path("step.onnx"));
  ASSERT_TRUE(model.ok()) << model.status().ToString();
  const Graph& graph = *model->graph;
  for (const auto& node : graph.nodes()) EXPECT_EQ(node->domain(), "") << node->Label();
  EXPECT_THAT(NamesOf(graph.inputs()), Contains("caesura.step"));
  EXPECT_THAT(NamesOf(graph.outputs()),
              ElementsAre(kLossOutput, "updated.w", "updated.optimizer.exp_avg.w",
                          "updated.optimizer.exp_avg_sq.w"));
  const Tensor* weights = graph.Initializer(graph.FindValue("w"));
  ASSERT_NE(weights, nullptr);
  EXPECT_EQ(weights->ToVector<float>(), parts.Weights());
}

TEST(ExportTraining, GradientsHaveTheNamesOfTheirParameters) {
  const TemporaryFolder folder;
  PartsOfASession parts;
  ASSERT_TRUE(
      ExportTraining(parts.all(), folder.path("g.onnx"), {.part = TrainingPart::kGradients}).ok());
  const Result<Model> model = ReadModel(folder.path("g.onnx"));
  ASSERT_TRUE(model.ok()) << model.status().ToString();
  EXPECT_THAT(NamesOf(model->graph->outputs()), ElementsAre(kLossOutput, "gradient.w"));
}

TEST(ExportTraining, ARefusalWritesNothing) {
  const TemporaryFolder folder;
  PartsOfASession parts([](TrainingOptions& o) { o.step.refuse_nonfinite = true; });
  const Status refused = ExportTraining(parts.all(), folder.path("s.onnx"), {});
  EXPECT_THAT(refused.message(), HasSubstr("no operator of ONNX can"));
  EXPECT_FALSE(std::filesystem::exists(folder.path("s.onnx")));
  const Status no_sums =
      ExportTraining(parts.all(), folder.path("s.onnx"), {.part = TrainingPart::kAccumulate});
  EXPECT_THAT(no_sums.message(), HasSubstr("accumulation_steps is 1"));
}

}  // namespace
}  // namespace caesura::testing
