// SPDX-License-Identifier: Apache-2.0
#include "training/adapters/lora.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>

#include "core/onnx/model_reader.h"
#include "core/onnx/model_writer.h"
#include "core/session/session.h"
#include "training/session/training_session.h"

namespace caesura {
namespace {

using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::SizeIs;

// Two layers, of a MatMul with a bias and of a Gemm whose weight is as PyTorch has it.
constexpr char kTwoLayers[] = R"((float[N, 2] x) => (float[N, 2] y)
    <float[2, 3] fc1.weight = {1, 2, 3, 4, 5, 6}, float[3] bias = {1, 1, 1},
     float[2, 3] net.fc2.weight = {1, 0, 2, 0, 1, 1}> {
      product = MatMul (x, fc1.weight) h = Add (product, bias)
      y = Gemm <transB = 1> (h, net.fc2.weight) })";

// ONNX's text has no dots in names.
Model Parsed(std::string text) {
  const auto undotted = [&](const std::string& name, const std::string& to) {
    for (size_t at = text.find(name); at != text.npos; at = text.find(name, at + to.size()))
      text.replace(at, name.size(), to);
  };
  undotted("net.fc2.weight", "net_fc2_weight");
  undotted("fc1.weight", "fc1_weight");
  Model model =
      ParseModelText("<ir_version: 10, opset_import: [\"\": 21, \"com.microsoft\": 1]> g " + text)
          .value();
  Graph& graph = *model.graph;
  for (const auto& [from, to] :
       {std::pair("fc1_weight", "fc1.weight"), std::pair("net_fc2_weight", "net.fc2.weight")}) {
    Value* value = graph.FindValue(from);
    if (value == nullptr) continue;
    Value* renamed = graph.AddInitializer(to, *graph.Initializer(value));
    graph.ReplaceAllUses(value, renamed);
    renamed->set_type(value->type());
    graph.RemoveUnusedValues();
  }
  return model;
}

std::vector<float> OutputOf(const Model& model, const Tensor& x) {
  auto session = Session::Create(ReadModelBytes(SerializeModel(model).value()).value()).value();
  return session->Run({{"x", x}}, {"y"}).value()[0].tensor().ToVector<float>();
}

const Tensor kX = Tensor::Of<float>(Shape{1, 2}, {1, -1});

// An adapter of rank 1 of the second layer: A = [1, 2, 3], B = [1, 10].
Adapter SmallAdapter() {
  return {1,
          2.0,
          {{"net.fc2",
            {Tensor::Of<float>(Shape{1, 3}, {1, 2, 3}), Tensor::Of<float>(Shape{2, 1}, {1, 10})}}}};
}

TEST(AddLora, ChangesNothingAtFirstAndTrainsItsOwnMatricesOnly) {
  const Model base = Parsed(kTwoLayers);
  Model model = AddLora(base, {.targets = {"fc1", "fc2"}, .rank = 2}).value();
  EXPECT_EQ(OutputOf(model, kX), OutputOf(base, kX));
  const Adapter adapter = AdapterOf(model).value();
  ASSERT_THAT(adapter.layers, SizeIs(2));
  const std::vector<float> a = adapter.layers.at("fc1").a.ToVector<float>();
  for (const float value : a) EXPECT_LE(std::abs(value), 1 / std::sqrt(2.0f));
  EXPECT_NE(a[0], a[1]);
  EXPECT_THAT(adapter.layers.at("fc1").b.ToVector<float>(), ElementsAre(0, 0, 0, 0, 0, 0));
  EXPECT_EQ(AdapterOf(AddLora(base, {.targets = {"*"}, .rank = 2, .seed = 1}).value())
                    .value()
                    .layers.at("fc1")
                    .a.ToVector<float>() == a,
            false);

  TrainingOptions options;
  options.step.loss = Loss::MeanSquaredError();
  auto session = TrainingSession::Create(std::move(model), options).value();
  EXPECT_THAT(session->parameters().Names(),
              ::testing::UnorderedElementsAre("fc1.lora_A.weight", "fc1.lora_B.weight",
                                              "net.fc2.lora_A.weight", "net.fc2.lora_B.weight"));
}

TEST(AddAdapter, AddsTheScaledProductAfterTheBias) {
  const Model base = Parsed(kTwoLayers);
  // h = [1 - 4, 2 - 5, 3 - 6] + 1 = [-2, -2, -2]; y = [-6, -4]; A h = -12; times 2: -24.
  EXPECT_THAT(OutputOf(base, kX), ElementsAre(-6, -4));
  const Model model = AddAdapter(base, SmallAdapter()).value();
  EXPECT_THAT(OutputOf(model, kX), ElementsAre(-6 - 24, -4 - 240));
  // In place of its own.
  Adapter other = SmallAdapter();
  other.layers["net.fc2"].b = Tensor::Of<double>(Shape{2, 1}, {0, 1});
  EXPECT_THAT(OutputOf(AddAdapter(model, other).value(), kX), ElementsAre(-6, -4 - 24));
}

TEST(MergeAdapter, GivesWeightsThatTrainAgain) {
  const Model base = Parsed(kTwoLayers);
  const Model merged = MergeAdapter(AddAdapter(base, SmallAdapter()).value()).value();
  EXPECT_THAT(OutputOf(merged, kX), ElementsAre(-6 - 24, -4 - 240));
  EXPECT_THAT(merged.graph->nodes(), SizeIs(3));
  EXPECT_THAT(merged.graph->inputs(), SizeIs(1));
  EXPECT_THAT(merged.metadata.count("ai.caesura.lora"), 0);
  EXPECT_THAT(MarkedBuffers(merged), IsEmpty());
  EXPECT_EQ(AdapterOf(merged).status().message(), "the model has no adapter");
}

TEST(MergeAdapter, RefusesWeightsThatOthersRead) {
  const Model model = Parsed(R"((float[N, 2] x) => (float[N, 2] y, float[2, 2] z)
      <float[2, 2] fc1.weight = {1, 2, 3, 4}> {
        y = MatMul (x, fc1.weight) z = Neg (fc1.weight) })");
  const Status refused =
      MergeAdapter(AddLora(model, {.targets = {"fc1"}, .rank = 1}).value()).status();
  EXPECT_EQ(refused.code(), StatusCode::kUnsupported);
  EXPECT_THAT(refused.message(), AllOf(HasSubstr("layer 'fc1'"), HasSubstr("Neg")));
}

TEST(AddLora, HalfLayersHaveFloatAdapters) {
  const Model base = Parsed(R"((float16[N, 2] x) => (float16[N, 2] y)
      <float16[2, 2] fc1.weight = {15360, 16384, 16896, 17408}> {
        y = MatMul (x, fc1.weight) })");  // the bits of 1, 2, 3, 4
  Adapter adapter = SmallAdapter();
  adapter.layers = {
      {"fc1", {Tensor::Of<float>(Shape{1, 2}, {1, 0}), Tensor::Of<float>(Shape{2, 1}, {1, 0.5})}}};
  const Model model = AddAdapter(base, adapter).value();
  EXPECT_EQ(AdapterOf(model).value().layers.at("fc1").a.dtype(), DType::kFloat32);
  auto session = Session::Create(MergeAdapter(model).value().Clone()).value();
  Tensor x = Tensor::Zeros(DType::kFloat16, Shape{1, 2});
  x.data<uint16_t>()[0] = 0x3C00;  // 1
  EXPECT_THAT(session->Run({{"x", x}}, {"y"}).value()[0].tensor().ToVector<float>(),
              ElementsAre(3, 3));
}

TEST(AddLora, TargetsWithoutALayerListTheLayers) {
  const Model base = Parsed(kTwoLayers);
  const Status wrong = AddLora(base, {.targets = {"fc1", "c2"}}).status();
  EXPECT_EQ(wrong.code(), StatusCode::kInvalidArgument);
  EXPECT_EQ(wrong.message(),
            "lora: targets: no layer is named 'c2'; the model has 'fc1', 'net.fc2'");
  EXPECT_THAT(AddLora(base, {}).status().message(), HasSubstr("none were given"));
  EXPECT_THAT(AddLora(base, {.targets = {"*"}, .rank = 0}).status().message(),
              HasSubstr("rank: expected at least 1, got 0"));
  const Model adapted = AddLora(base, {.targets = {"*"}}).value();
  EXPECT_THAT(AddLora(adapted, {.targets = {"*"}}).status().message(),
              HasSubstr("has an adapter already"));
}

TEST(AddAdapter, ListsAllThatDoesNotFit) {
  const Model base = Parsed(kTwoLayers);
  Adapter adapter = SmallAdapter();
  adapter.layers["fc3"] = adapter.layers["net.fc2"];
  adapter.layers["fc1"] = adapter.layers["net.fc2"];
  const Status wrong = AddAdapter(base, adapter).status();
  EXPECT_EQ(wrong.code(), StatusCode::kInvalidArgument);
  EXPECT_THAT(wrong.message(), AllOf(HasSubstr("no layer 'fc3'"),
                                     HasSubstr("'fc1.lora_A.weight': expected float32[1, 2], got "
                                               "float32[1, 3]")));
  const Model adapted = AddLora(base, {.targets = {"fc1"}, .rank = 4}).value();
  EXPECT_THAT(AddAdapter(adapted, SmallAdapter()).status().message(),
              AllOf(HasSubstr("rank and alpha are 4"), HasSubstr("has no layer 'fc1'")));
}

TEST(SetAdapter, GivesASessionsAdapterOtherValues) {
  Model model = AddAdapter(Parsed(kTwoLayers), SmallAdapter()).value();
  TrainingOptions options;
  options.step.loss = Loss::MeanSquaredError();
  auto session = TrainingSession::Create(std::move(model), options).value();
  Adapter other = SmallAdapter();
  other.layers["net.fc2"].b = Tensor::Of<float>(Shape{2, 1}, {7, 8});
  ASSERT_TRUE(SetAdapter(other, &session->parameters()).ok());
  EXPECT_THAT(AdapterOf(session->parameters()).value().layers.at("net.fc2").b.ToVector<float>(),
              ElementsAre(7, 8));
  other.rank = 2;
  EXPECT_EQ(SetAdapter(other, &session->parameters()).code(), StatusCode::kInvalidArgument);
}

}  // namespace
}  // namespace caesura
