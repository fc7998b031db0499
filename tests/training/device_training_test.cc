// SPDX-License-Identifier: Apache-2.0
// Modules and sessions with a device: the numbers of the CPU, shapes on the host.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "core/onnx/model_reader.h"
#include "core/providers/counting_provider.h"
#include "graph_transforms/shapes/cpu_fallback.h"
#include "tests/temporary_folder.h"
#include "training/session/split_module.h"
#include "training/session/training_session.h"

namespace caesura {
namespace {

using ::testing::HasSubstr;

// Slice, Gather and Pad have gradients that take the shapes of what they differentiate; the sizes
// come from a graph input.
constexpr char kNet[] = R"(<ir_version: 10, opset_import: ["" : 23]>
net (float[N, 4] x, int64[1] keep, int64[N] row) => (float[A, 3] y)
    <float[4, 3] w = {1, -2, 3, 4, -5, 6, 7, 8, -9, 1, 2, 3}, float[3] b = {0.5, 0.25, -1}, int64[1] zero = {0},
     int64[1] one = {1}, int64[3] before = {0, 0, 1}> {
  h = MatMul (x, w)
  r = Relu (h)
  g = Gather (r, row)
  more = Add (keep, one)
  less = Sub (more, one)
  s = Slice (g, zero, less, zero)
  pads = Concat <axis = 0> (before, zero)
  p = Pad (s, pads)
  y = Add (p, b)
})";

Tensor Floats(Shape shape) {
  std::vector<float> values(static_cast<size_t>(shape.elements()));
  for (size_t i = 0; i < values.size(); ++i) values[i] = static_cast<float>(i % 7) - 2.5f;
  return Tensor::Of<float>(std::move(shape), values);
}

NamedValues Feeds() {
  return {{"x", Floats(Shape{4, 4})},
          {"keep", Tensor::Of<int64_t>(Shape{1}, {2})},
          {"row", Tensor::Of<int64_t>(Shape{4}, {3, 1, 0, 2})}};
}

std::vector<std::vector<float>> ToVectors(const std::vector<RuntimeValue>& values) {
  std::vector<std::vector<float>> out;
  for (const RuntimeValue& value : values) out.push_back(value.tensor().ToVector<float>());
  return out;
}

TEST(DeviceTraining, ModulesGiveTheGradientsOfTheCpu) {
  std::vector<std::vector<std::vector<float>>> gradients;
  std::vector<float> outputs_on_host;
  CountingDevice device({.close_pages = true});
  for (const ProviderList& providers : {ProviderList(), device.providers()}) {
    SplitModuleOptions options;
    options.inputs = {"x"};
    options.providers = providers;
    auto module = SplitModule::Create(ParseModelText(kNet).value(), options);
    ASSERT_TRUE(module.ok()) << module.status().ToString();
    auto run = (*module)->Forward(Feeds());
    ASSERT_TRUE(run.ok()) << run.status().ToString();
    const std::vector<RuntimeValue> handed = run->outputs;
    if (providers.empty()) outputs_on_host = handed[0].tensor().ToVector<float>();
    auto backward = run->Backward({Floats(Shape{3, 3})});
    ASSERT_TRUE(backward.ok()) << backward.status().ToString();
    gradients.push_back(ToVectors(*backward));
    if (providers.empty()) continue;
    EXPECT_EQ(handed[0].tensor().device(), device.device());
    testing::TemporaryFolder folder;
    auto waiting = (*module)->Forward(Feeds());
    ASSERT_TRUE(waiting.ok());
    ASSERT_TRUE(waiting->Save(folder.path("run")).ok());
    auto loaded = (*module)->LoadRun(folder.path("run"));
    ASSERT_TRUE(loaded.ok()) << loaded.status().ToString();
    EXPECT_EQ(loaded->outputs[0].tensor().ToVector<float>(), outputs_on_host);
    EXPECT_EQ(ToVectors(*loaded->Backward({Floats(Shape{3, 3})})), gradients.back());
    // The sizes stay on the host, before the yield and after it.
    EXPECT_EQ((*module)->cpu_fallback().mode, CpuFallbackMode::kOn);
    EXPECT_EQ((*module)->cpu_fallback().to_host_after, 0) << (*module)->cpu_fallback().ToString();
    EXPECT_GT((*module)->cpu_fallback().to_host_before, 0);
    EXPECT_THAT((*module)->cpu_fallback().ToString(), HasSubstr("moved less"));
    // Once more: parameters are there already, and nothing waits but for results.
    device.Reset();
    auto again = (*module)->Forward(Feeds());
    ASSERT_TRUE(again.ok());
    EXPECT_EQ(device.counts().synchronisations, 0u);
    EXPECT_EQ(device.counts().copies_to_host, 0u);
    EXPECT_EQ(device.counts().copies_to_device, 2u);  // x and row
  }
  EXPECT_EQ(gradients[0], gradients[1]);
}

TEST(DeviceTraining, SessionsTakeTheStepsOfTheCpu) {
  std::vector<std::vector<double>> losses;
  CountingDevice device({.close_pages = true});
  for (const ProviderList& providers : {ProviderList(), device.providers()}) {
    TrainingOptions options;
    options.step.loss = Loss::MeanSquaredError("target");
    options.step.optimizer = AdamW{.learning_rate = 0.1};
    options.providers = providers;
    auto session = TrainingSession::Create(ParseModelText(kNet).value(), options);
    ASSERT_TRUE(session.ok()) << session.status().ToString();
    NamedValues feeds = Feeds();
    feeds["target"] = Floats(Shape{3, 3});
    losses.emplace_back();
    for (int i = 0; i < 4; ++i) {
      auto loss = (*session)->Step(feeds);
      ASSERT_TRUE(loss.ok()) << loss.status().ToString();
      losses.back().push_back(*loss);
    }
  }
  EXPECT_EQ(losses[0], losses[1]);
  EXPECT_LT(losses[0].back(), losses[0].front());
}

}  // namespace
}  // namespace caesura
