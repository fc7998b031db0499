// SPDX-License-Identifier: Apache-2.0
// A whole training step of a tiny MLP (32-64-64-8, batch 16: forward, cross-entropy, backward,
// AdamW) in C++: caesura beside LibTorch's eager mode, from the same weights on the same batch, in
// turns, in one process.
//
//   cmake -B build -DCAESURA_TORCH=ON && cmake --build build --target libtorch_step &&
//   build/bin/libtorch_step
//
// Prints the median time of a step of each over 21 rounds, the ratio of each round's times as
// median and quartiles, and how far the losses of the first steps are apart. One thread each: the
// step is too small for two.
#include <torch/torch.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstdio>
#include <vector>

#include "core/onnx/model_reader.h"
#include "training/session/training_session.h"

namespace {

constexpr int kRounds = 21, kSteps = 400, kCompared = 20;
constexpr double kRate = 1e-3;

constexpr char kModel[] = R"(<ir_version: 10, opset_import: ["": 21]>
mlp (float[16,32] x, float[64,32] w1, float[64] b1, float[64,64] w2, float[64] b2, float[8,64] w3, float[8] b3)
    => (float[16,8] y) {
  h1 = Gemm <transB = 1> (x, w1, b1)
  a1 = Relu (h1)
  h2 = Gemm <transB = 1> (a1, w2, b2)
  a2 = Relu (h2)
  y = Gemm <transB = 1> (a2, w3, b3)
})";

caesura::Tensor ToCaesura(const torch::Tensor& t) {
  const std::vector<int64_t> dims(t.sizes().begin(), t.sizes().end());
  const auto dtype =
      t.scalar_type() == torch::kInt64 ? caesura::DType::kInt64 : caesura::DType::kFloat32;
  caesura::Tensor out = caesura::Tensor::Zeros(dtype, caesura::Shape(dims));
  std::memcpy(out.raw(), t.contiguous().data_ptr(), out.bytes());
  return out;
}

template <typename Step>
double MicrosecondsAStep(const Step& step) {
  const auto begin = std::chrono::steady_clock::now();
  for (int i = 0; i < kSteps; ++i) step();
  return std::chrono::duration<double, std::micro>(std::chrono::steady_clock::now() - begin)
             .count() /
         kSteps;
}

double Quantile(std::vector<double> values, double q) {
  std::sort(values.begin(), values.end());
  return values[static_cast<size_t>(q * static_cast<double>(values.size() - 1))];
}

}  // namespace

int main() {
  torch::manual_seed(0);
  at::set_num_threads(1);
  torch::nn::Sequential net(torch::nn::Linear(32, 64), torch::nn::ReLU(), torch::nn::Linear(64, 64),
                            torch::nn::ReLU(), torch::nn::Linear(64, 8));
  torch::optim::AdamW optimizer(net->parameters(),
                                torch::optim::AdamWOptions(kRate).weight_decay(0.01));
  const torch::Tensor x = torch::randn({16, 32}), labels = torch::randint(8, {16});

  caesura::Model model = caesura::ParseModelText(kModel).value();
  const char* names[] = {"w1", "b1", "w2", "b2", "w3", "b3"};
  const std::vector<torch::Tensor> weights = net->parameters();
  for (size_t i = 0; i < weights.size(); ++i) {
    caesura::Value* value = model.graph->FindValue(names[i]);
    model.graph->RemoveInput(value);
    model.graph->SetInitializer(value, ToCaesura(weights[i].detach()));
  }
  caesura::TrainingOptions options;
  options.step.loss = caesura::Loss::CrossEntropy("labels");
  options.step.optimizer = caesura::AdamW{.learning_rate = kRate, .weight_decay = 0.01};
  options.threads = 1;
  auto session = caesura::TrainingSession::Create(std::move(model), options).value();
  const caesura::NamedValues feeds = {{"x", ToCaesura(x)}, {"labels", ToCaesura(labels)}};

  double ours = 0, theirs = 0, apart = 0;
  auto caesura_step = [&] { ours = session->Step(feeds).value(); };
  auto torch_step = [&] {
    optimizer.zero_grad();
    torch::Tensor loss = torch::nn::functional::cross_entropy(net->forward(x), labels);
    loss.backward();
    optimizer.step();
    theirs = loss.item<double>();
  };
  for (int i = 0; i < kCompared; ++i) {
    caesura_step();
    torch_step();
    apart = std::max(apart, std::fabs(ours - theirs) / std::fabs(theirs));
  }
  std::vector<double> our_times, their_times, ratios;
  for (int round = 0; round < kRounds; ++round) {
    our_times.push_back(MicrosecondsAStep(caesura_step));
    their_times.push_back(MicrosecondsAStep(torch_step));
    ratios.push_back(our_times.back() / their_times.back());
  }
  std::printf("tiny-mlp step: caesura %.1f us, LibTorch eager %.1f us; ratio %.3f [%.3f, %.3f]\n",
              Quantile(our_times, 0.5), Quantile(their_times, 0.5), Quantile(ratios, 0.5),
              Quantile(ratios, 0.25), Quantile(ratios, 0.75));
  std::printf("losses of the first %d steps: at most %.1e apart, relative\n", kCompared, apart);
  return apart < 1e-4 ? 0 : 1;
}
