// SPDX-License-Identifier: Apache-2.0
// Trains y = w x to w = 3 and says so by its exit code.
#include <cmath>
#include <cstdio>

#include "core/graph/graph_text.h"
#include "training/training_session.h"

using namespace caesura;

int main() {
  Model model = ParseModelText(R"(<ir_version: 10, opset_import: ["" : 21]>
      line (float[N, 1] x) => (float[N, 1] y) <float[1, 1] w = {0.5}> { y = MatMul(x, w) })").value();
  TrainingOptions options;
  options.step.loss = Loss::MeanSquaredError("target");
  options.step.optimizer = Sgd{.learning_rate = 0.1};
  auto session = TrainingSession::Create(std::move(model), options).value();
  for (int step = 0; step < 100; ++step) {
    const Tensor x = Tensor::Of<float>(Shape{2, 1}, {1.0f, 2.0f});
    const Tensor target = Tensor::Of<float>(Shape{2, 1}, {3.0f, 6.0f});
    session->Step({{"x", x}, {"target", target}}).value();
  }
  const float w = session->Parameter("w").value().data<float>()[0];
  std::printf("w = %f\n", w);
  return std::fabs(w - 3.0f) < 1e-4f ? 0 : 1;
}
