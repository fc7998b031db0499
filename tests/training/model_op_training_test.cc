// SPDX-License-Identifier: Apache-2.0
// Training around model ops: gradients by a model of their own, by the runtime, and by the nested
// model's.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "core/custom_ops/model_op.h"
#include "core/onnx/model_reader.h"
#include "core/onnx/model_writer.h"
#include "core/plugin/plugin_library.h"
#include "tests/test_paths.h"
#include "training/session/split_module.h"
#include "training/session/training_session.h"

namespace caesura {
namespace {

using ::testing::ElementsAre;
using ::testing::FloatNear;
using ::testing::HasSubstr;
using ::testing::Pointwise;

constexpr char kHead[] = "<ir_version: 10, opset_import: [\"\" : 23, \"ai.caesura\" : 1]> g ";

Model ModelOf(const std::string& body) {
  auto model = ParseModelText(kHead + body);
  EXPECT_TRUE(model.ok()) << model.status().ToString();
  return *std::move(model);
}

std::string BytesOf(const std::string& body) { return SerializeModel(ModelOf(body)).value(); }

// x * w1 -> the wrapped model -> * w2, as one graph.
Model Around(const Model& wrapped) {
  Model out = ModelOf(
      "(float[2] x) => (float[2] y) <float[2] w1 = {0.5, -1}, float[2] w2 = {2, 3}>"
      "{ a = Mul (x, w1) b = Identity (a) y = Mul (b, w2) }");
  Graph& graph = *out.graph;
  Node* identity = graph.nodes()[1].get();
  const Node& node = *wrapped.graph->nodes()[0];
  const std::vector<Value*> outputs = graph.ReleaseOutputs(identity);
  graph.AddNode(node.op_type(), identity->inputs(), outputs, node.attributes(), node.domain(),
                "middle");
  graph.RemoveNode(identity);
  EXPECT_TRUE(graph.SortTopologically().ok());
  return out;
}

Result<std::vector<std::vector<float>>> Gradients(Model model,
                                                  std::vector<CaesuraModelRuntime> runtimes = {}) {
  SplitModuleOptions options;
  options.custom_ops.model_runtimes = std::move(runtimes);
  auto module = SplitModule::Create(std::move(model), options);
  if (!module.ok()) return module.status();
  const Tensor x = Tensor::Of<float>(Shape{2}, {1, 2});
  auto run = (*module)->Forward({{"x", x}});
  if (!run.ok()) return run.status();
  auto gradients = run->Backward({Tensor::Of<float>(Shape{2}, {1, 10})});
  if (!gradients.ok()) return gradients.status();
  std::vector<std::vector<float>> out;
  for (const RuntimeValue& gradient : *gradients)
    out.push_back(gradient.tensor().ToVector<float>());
  return out;
}

constexpr char kMiddle[] = "(float[N] u) => (float[N] v) { s = Sin (u) v = Mul (s, u) }";
constexpr char kMiddleGradient[] =
    "(float[N] u, float[N] dv) => (float[N] du) { s = Sin (u) c = Cos (u) uc = Mul (u, c) d = Add "
    "(s, uc) du = Mul (dv, d) }";

std::vector<std::vector<float>> Expected() {
  return Gradients(
             ModelOf("(float[2] x) => (float[2] y) <float[2] w1 = {0.5, -1}, float[2] w2 = {2, 3}>"
                     "{ a = Mul (x, w1) s = Sin (a) b = Mul (s, a) y = Mul (b, w2) }"))
      .value();
}

void ExpectSame(const Result<std::vector<std::vector<float>>>& got) {
  ASSERT_TRUE(got.ok()) << got.status().ToString();
  const auto want = Expected();
  ASSERT_EQ(got->size(), want.size());
  for (size_t i = 0; i < want.size(); ++i)
    EXPECT_THAT((*got)[i], Pointwise(FloatNear(1e-5f), want[i]));
}

TEST(ModelOpTraining, NestedModelsHaveGradientsOfTheirOwn) {
  WrapOptions wrap;
  wrap.runtime = "caesura";
  wrap.model_bytes = BytesOf(kMiddle);
  ExpectSame(Gradients(Around(WrapModel(wrap).value())));
}

TEST(ModelOpTraining, AModelOfTheGradientTakesTheRuntimesPlace) {
  WrapOptions wrap;
  wrap.runtime = "caesura";
  wrap.model_bytes = BytesOf(kMiddle);
  wrap.gradient_bytes = BytesOf(kMiddleGradient);
  ExpectSame(Gradients(Around(WrapModel(wrap).value())));
  // It is that model which counts: half of it gives half of the gradient in front.
  wrap.gradient_bytes = BytesOf(
      "(float[N] u, float[N] dv) => (float[N] du) { zero = Sub (u, u) du = Mul (zero, dv) }");
  const auto none = Gradients(Around(WrapModel(wrap).value())).value();
  EXPECT_THAT(none[0], ElementsAre(0, 0));
  EXPECT_NE(none[1], (std::vector<float>{0, 0}));
}

TEST(ModelOpTraining, RuntimesWithoutGradientsSaySo) {
  const auto runtimes = LoadPluginLibrary(testing::kTestOpsC).value().model_runtimes;
  WrapOptions wrap;
  wrap.model_bytes = "3";
  wrap.runtime = "test";
  const auto gradients = Gradients(Around(WrapModel(wrap, runtimes).value()), runtimes);
  ASSERT_TRUE(gradients.ok()) << gradients.status().ToString();
  EXPECT_THAT((*gradients)[0], ElementsAre(3 * 2 * 1, 3 * 3 * 2 * 10));
  wrap.runtime = "test_without_gradient";
  EXPECT_THAT(Gradients(Around(WrapModel(wrap, runtimes).value()), runtimes).status().message(),
              HasSubstr("[ai.caesura::ModelOp 'middle'] has no gradient: runtime "
                        "'test_without_gradient' computes none; give the node a "
                        "gradient_model"));
}

TEST(ModelOpTraining, SessionsTrainTheLayersAround) {
  WrapOptions wrap;
  wrap.runtime = "caesura";
  wrap.model_bytes = BytesOf(kMiddle);
  TrainingOptions options;
  options.step.loss = Loss::MeanSquaredError("target");
  options.step.optimizer = Sgd{.learning_rate = 0.05};
  auto session = TrainingSession::Create(Around(WrapModel(wrap).value()), options);
  ASSERT_TRUE(session.ok()) << session.status().ToString();
  const NamedValues feeds = {{"x", Tensor::Of<float>(Shape{2}, {1, 2})},
                             {"target", Tensor::Of<float>(Shape{2}, {1, 2})}};
  const double first = (*session)->Step(feeds).value();
  double last = first;
  for (int i = 0; i < 100; ++i) last = (*session)->Step(feeds).value();
  EXPECT_LT(last, first / 10);
}

}  // namespace
}  // namespace caesura
