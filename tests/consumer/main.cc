// SPDX-License-Identifier: Apache-2.0
// Trains y = relu(w x) to w = 3, the relu on a provider of its own plug-in, and says so by its exit
// code.
#include <algorithm>
#include <cmath>
#include <cstdio>

#include "core/onnx/model_reader.h"
#include "core/plugin/plugin_provider.h"
#include "core/providers/cpu_provider.h"
#include "training/session/training_session.h"

using namespace caesura;

int main() {
  Model model = ParseModelText(R"(<ir_version: 10, opset_import: ["" : 21]>
      line (float[N, 1] x) => (float[N, 1] y) <float[1, 1] w = {0.5}> { p = MatMul(x, w) y = Relu(p) })")
                    .value();
  TrainingOptions options;
  options.step.loss = Loss::MeanSquaredError("target");
  options.step.optimizer = Sgd{.learning_rate = 0.1};
  options.providers = {ProviderByName("ReluExecutionProvider").value(), MakeCpuProvider()};
  auto session = TrainingSession::Create(std::move(model), options).value();
  for (int step = 0; step < 100; ++step) {
    const Tensor x = Tensor::Of<float>(Shape{2, 1}, {1.0f, 2.0f});
    const Tensor target = Tensor::Of<float>(Shape{2, 1}, {3.0f, 6.0f});
    session->Step({{"x", x}, {"target", target}}).value();
  }
  const float w = session->parameters().Get("w").value().data<float>()[0];
  const auto& nodes = session->runs().step_graph().nodes();
  const bool taken = std::any_of(nodes.begin(), nodes.end(), [](const auto& node) {
    return node->provider() == "ReluExecutionProvider";
  });
  std::printf("w = %f, %s\n", w, taken ? "with the plug-in" : "without the plug-in");
  return taken && std::fabs(w - 3.0f) < 1e-4f ? 0 : 1;
}
