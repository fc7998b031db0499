// SPDX-License-Identifier: Apache-2.0
#include "torch_bridge/torch_module.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/autograd.h>
#include <torch/nn/functional/loss.h>
#include <torch/nn/modules/batchnorm.h>
#include <torch/nn/modules/container/sequential.h>
#include <torch/nn/modules/linear.h>
#include <torch/optim/adamw.h>
#include <torch/serialize.h>

#include <sstream>
#include <thread>

#include "core/onnx/model_reader.h"
#include "torch_bridge/torch_tensor.h"

namespace caesura::torch {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
namespace F = ::torch::nn::functional;

Model Parse(const std::string& graph) {
  return ParseModelText("<ir_version: 10, opset_import: [\"\": 21]>\n" + graph).value();
}

// x -> tanh(x w^T + b): parameters "fc.weight" and "fc.bias".
Model Layer() {
  return Parse(
      "g (float[N, 3] x) => (float[N, 2] y) <float[2, 3] \"fc.weight\" = {1, 2, 3, -1, 0.5, "
      "0.25},\n"
      "  float[2] \"fc.bias\" = {0.1, -0.2}> { h = Gemm <transB = 1> (x, \"fc.weight\", "
      "\"fc.bias\")\n y = Tanh (h) }");
}

at::Tensor Reference(Module& module, const at::Tensor& x) {
  const auto parameters = module.named_parameters();
  return at::tanh(at::linear(x, parameters["fc.weight"], parameters["fc.bias"]));
}

const at::Tensor kX = at::linspace(-1, 1, 12).reshape({4, 3});

std::string ErrorOf(const std::function<void()>& call) {
  try {
    call();
  } catch (const c10::Error& error) {
    return error.what_without_backtrace();
  }
  return "";
}

// Gradients of what `forward` gives, weighted, by the parameters and the input.
std::vector<at::Tensor> Gradients(Module& module,
                                  const std::function<at::Tensor(const at::Tensor&)>& forward) {
  module.zero_grad();
  at::Tensor x = kX.clone().set_requires_grad(true);
  const at::Tensor y = forward(x);
  (y * at::arange(y.numel()).reshape(y.sizes())).sum().backward();
  std::vector<at::Tensor> out = {y.detach(), x.grad()};
  for (const at::Tensor& parameter : module.parameters()) out.push_back(parameter.grad().clone());
  return out;
}

TEST(TorchModuleTest, ParametersHaveTheModelsNames) {
  Module module(Layer());
  std::vector<std::string> names;
  for (const auto& item : module.named_parameters()) names.push_back(item.key());
  EXPECT_THAT(names, ::testing::UnorderedElementsAre("fc.weight", "fc.bias"));
  EXPECT_EQ(module.named_parameters()["fc.weight"][0][2].item<float>(), 3);
}

TEST(TorchModuleTest, OutputsAndGradientsAreThoseOfEager) {
  Module module(Layer());
  const auto ours = Gradients(module, [&](const at::Tensor& x) { return module.forward(x); });
  const auto eager = Gradients(module, [&](const at::Tensor& x) { return Reference(module, x); });
  ASSERT_EQ(ours.size(), 4u);
  for (size_t i = 0; i < ours.size(); ++i)
    EXPECT_TRUE(at::allclose(ours[i], eager[i], 1e-5, 1e-6)) << i;
}

TEST(TorchModuleTest, WritesToParametersAreSeenWhoeverMakesThem) {
  Module module(Layer());
  at::Tensor weight = module.named_parameters()["fc.weight"];
  const auto agrees = [&] {
    return at::allclose(module.forward(kX), Reference(module, kX), 1e-5, 1e-6);
  };
  EXPECT_TRUE(agrees());
  weight.mutable_data_ptr<float>()[0] = 7;  // no version counter moves
  EXPECT_TRUE(agrees());
  {
    at::NoGradGuard no_grad;
    weight.mul_(2);
    EXPECT_TRUE(agrees());
    module.eval();
    weight.add_(1);
    EXPECT_TRUE(agrees());
  }
  weight.set_data(at::full({2, 3}, 0.25));  // other bytes altogether
  EXPECT_TRUE(agrees());
  weight.set_data(at::full({2, 3}, 0.25, at::kDouble));
  EXPECT_THAT(ErrorOf([&] { module.forward(kX); }), HasSubstr("is now float64[2, 3]"));
}

TEST(TorchModuleTest, SeveralForwardsAndRetainedGraphs) {
  Module module(Layer());
  const auto run = [&](auto forward) {
    module.zero_grad();
    const at::Tensor first = forward(kX), second = forward(kX * 2);
    second.sum().backward({}, /*retain_graph=*/true);
    first.mean().backward();
    second.square().sum().backward();
    return module.named_parameters()["fc.weight"].grad().clone();
  };
  const at::Tensor ours = run([&](const at::Tensor& x) { return module.forward(x); });
  EXPECT_TRUE(at::allclose(ours, run([&](const at::Tensor& x) { return Reference(module, x); }),
                           1e-5, 1e-6));
}

TEST(TorchModuleTest, WhatCannotBeDifferentiatedIsSaid) {
  Module module(Layer());
  at::Tensor y = module.forward(kX);
  y.sum().backward();
  EXPECT_THAT(ErrorOf([&] { y.sum().backward(); }), HasSubstr("retain_graph"));
  at::Tensor x = kX.clone().set_requires_grad(true);
  y = module.forward(x);
  EXPECT_THAT(
      ErrorOf([&] { ::torch::autograd::grad({y.sum()}, {x}, {}, true, /*create_graph=*/true); }),
      HasSubstr("no second derivatives"));
  {
    at::NoGradGuard no_grad;
    module.named_parameters()["fc.bias"].add_(1);
  }
  EXPECT_THAT(ErrorOf([&] { y.sum().backward(); }), HasSubstr("'fc.bias' was changed in place"));
  EXPECT_THAT(ErrorOf([&] { module.forward_all({}); }), HasSubstr("1 inputs, got 0"));
  EXPECT_THAT(ErrorOf([&] { module.forward(kX.to(at::kDouble)); }), HasSubstr("float64"));
  EXPECT_THAT(ErrorOf([&] { Module(Layer(), {.trainable = {"nothing"}}); }), HasSubstr("nothing"));
}

TEST(TorchModuleTest, AnOutputMayBeOverwrittenBeforeBackward) {
  Module module(Layer());
  const auto run = [&](bool overwrite) {
    module.zero_grad();
    at::Tensor y = module.forward(kX);
    const at::Tensor loss = (y * 3).sum();
    if (overwrite) y.detach().zero_();
    loss.backward();
    return module.named_parameters()["fc.weight"].grad().clone();
  };
  EXPECT_TRUE(at::equal(run(false), run(true)));
}

TEST(TorchModuleTest, RunningStatisticsAndModes) {
  const auto model = Parse(
      "g (float[N, 3] x) => (float[N, 3] y) <float[3] weight = {1, 2, 3}, float[3] bias = {0, 1, "
      "2},\n"
      "  float[3] mean = {0, 0, 0}, float[3] variance = {1, 1, 1}> {\n"
      "  y = BatchNormalization <momentum = 0.9> (x, weight, bias, mean, variance) }");
  Module module(model.Clone());
  ::torch::nn::BatchNorm1d eager(3);
  {
    at::NoGradGuard no_grad;
    eager->weight.copy_(at::tensor({1.f, 2.f, 3.f}));
    eager->bias.copy_(at::tensor({0.f, 1.f, 2.f}));
  }
  const auto agrees = [&] {
    return at::allclose(module.forward(kX), eager->forward(kX), 1e-4, 1e-5);
  };
  EXPECT_TRUE(agrees());
  EXPECT_TRUE(agrees());
  EXPECT_TRUE(at::allclose(module.named_buffers()["mean"], eager->running_mean, 1e-5, 1e-6));
  EXPECT_TRUE(at::allclose(module.named_buffers()["variance"], eager->running_var, 1e-5, 1e-6));
  module.eval();
  eager->eval();
  EXPECT_TRUE(agrees());
  module.forward(kX).sum().backward();  // in evaluation mode, with gradients
  eager->forward(kX).sum().backward();
  EXPECT_TRUE(
      at::allclose(module.named_parameters()["weight"].grad(), eager->weight.grad(), 1e-4, 1e-5));
  at::NoGradGuard no_grad;
  EXPECT_TRUE(agrees());
}

TEST(TorchModuleTest, OptimizerFreezingSavingAndCloning) {
  auto module = std::make_shared<Module>(Layer());
  module->named_parameters()["fc.bias"].set_requires_grad(false);
  ::torch::optim::AdamW optimizer(module->parameters(), ::torch::optim::AdamWOptions(0.05));
  const at::Tensor target = at::full({4, 2}, 0.5);
  double first = 0, last = 0;
  for (int step = 0; step < 60; ++step) {
    optimizer.zero_grad();
    const at::Tensor loss = F::mse_loss(module->forward(kX), target);
    loss.backward();
    optimizer.step();
    (step == 0 ? first : last) = loss.item<double>();
  }
  EXPECT_LT(last, 0.5 * first);
  EXPECT_FLOAT_EQ(module->named_parameters()["fc.bias"][0].item<float>(), 0.1f);
  EXPECT_FALSE(module->named_parameters()["fc.bias"].grad().defined());

  std::stringstream file;
  ::torch::serialize::OutputArchive out;
  module->save(out);
  out.save_to(file);
  auto loaded = std::make_shared<Module>(Layer());
  ::torch::serialize::InputArchive in;
  in.load_from(file);
  loaded->load(in);
  const auto copy = std::dynamic_pointer_cast<Module>(module->clone());
  const at::Tensor expected = module->forward(kX).detach();
  EXPECT_TRUE(at::equal(loaded->forward(kX), expected));
  {
    at::NoGradGuard no_grad;
    module->named_parameters()["fc.weight"].zero_();
  }
  EXPECT_TRUE(at::equal(copy->forward(kX), expected));
}

TEST(TorchModuleTest, APartOfALargerModel) {
  ::torch::nn::Sequential net(::torch::nn::Linear(3, 3), std::make_shared<Module>(Layer()),
                              ::torch::nn::Linear(2, 1));
  net->forward(kX).sum().backward();
  for (const at::Tensor& parameter : net->parameters()) EXPECT_TRUE(parameter.grad().defined());
}

TEST(TorchModuleTest, SeveralInputsAndOutputs) {
  Module module(Parse(
      "g (float[N] a, int64[N] i, float[N] b) => (float[N] sum, int64[N] next, float[N] free)\n"
      "  <float[1] w = {3}, int64 one = {1}> { c = Mul (a, w) sum = Add (c, b) next = Add (i, one) "
      "free = Abs (b) }"));
  const at::Tensor a = at::ones({2}).set_requires_grad(true), b = at::full({2}, 2.0);
  const auto outputs = module.forward_all({a, at::tensor({4, 5}, at::kLong), b});
  EXPECT_EQ(outputs[1][1].item<int64_t>(), 6);
  EXPECT_TRUE(outputs[0].requires_grad());
  EXPECT_FALSE(outputs[2].requires_grad());  // depends on nothing that is differentiated
  outputs[0].sum().backward();
  EXPECT_EQ(a.grad()[0].item<float>(), 3);
  EXPECT_EQ(module.named_parameters()["w"].grad().item<float>(), 2);
}

// --- lifetimes ---

TEST(TorchModuleTest, TensorsOutliveTheModule) {
  at::Tensor y, weight;
  {
    Module module(Layer());
    weight = module.named_parameters()["fc.weight"];
    y = module.forward(kX);
  }
  y.sum().backward();
  EXPECT_TRUE(weight.grad().defined());
  y.reset();
  EXPECT_EQ(weight[0][2].item<float>(), 3);
}

TEST(TorchModuleTest, TheModuleOutlivesTensors) {
  Module module(Layer());
  for (int i = 0; i < 3; ++i) {
    at::Tensor x = kX.clone();
    at::Tensor y = module.forward(x);
    x.reset();
    if (i == 1) continue;  // dropped without a backward
    y.sum().backward();
  }
  EXPECT_TRUE(module.named_parameters()["fc.weight"].grad().defined());
}

TEST(TorchModuleTest, AnExceptionBetweenForwardAndBackward) {
  Module module(Layer());
  for (int i = 0; i < 3; ++i) {
    EXPECT_THROW(
        {
          const at::Tensor y = module.forward(kX);
          at::matmul(y, at::ones({5, 5}));
        },
        c10::Error);
  }
  module.forward(kX).sum().backward();
  EXPECT_TRUE(at::allclose(module.forward(kX), Reference(module, kX), 1e-5, 1e-6));
}

TEST(TorchModuleTest, TwoThreadsTrainTwoModulesAndShareAThird) {
  Module shared(Layer());
  const at::Tensor expected = shared.forward(kX).detach();
  const auto train = [&](double* loss) {
    Module module(Layer(), {.threads = 1});
    ::torch::optim::AdamW optimizer(module.parameters(), ::torch::optim::AdamWOptions(0.05));
    for (int step = 0; step < 20; ++step) {
      optimizer.zero_grad();
      const at::Tensor error = F::mse_loss(module.forward(kX), at::zeros({4, 2}));
      error.backward();
      optimizer.step();
      *loss = error.item<double>();
      const at::Tensor y = shared.forward(kX);
      static_cast<void>(::torch::autograd::grad({y.sum()}, shared.parameters()));
      EXPECT_TRUE(at::equal(y, expected));
    }
  };
  double losses[2];
  std::thread other(train, &losses[1]);
  train(&losses[0]);
  other.join();
  EXPECT_EQ(losses[0], losses[1]);
}

// --- whole steps ---

TEST(TrainingStepTest, TakesAndGivesTorchTensors) {
  TrainingOptions options;
  options.step.loss = Loss::MeanSquaredError("target");
  options.step.optimizer = Sgd{.learning_rate = 0.1};
  TrainingStep step(Layer(), options);
  Module eager(Layer());
  const at::Tensor target = at::zeros({4, 2});
  const at::Tensor loss = step.step({{"x", kX}, {"target", target}});
  const at::Tensor expected = F::mse_loss(Reference(eager, kX), target);
  expected.backward();
  EXPECT_NEAR(loss.item<double>(), expected.item<double>(), 1e-6);
  at::NoGradGuard no_grad;
  for (auto& item : eager.named_parameters()) {
    item.value().sub_(item.value().grad(), 0.1);
    EXPECT_TRUE(at::allclose(step.parameters()[item.key()], item.value(), 1e-5, 1e-6));
  }
  EXPECT_TRUE(at::allclose(step.predict({{"x", kX}})[0], Reference(eager, kX), 1e-5, 1e-6));
  EXPECT_THAT(ErrorOf([&] { step.step({{"x", kX}}); }), HasSubstr("'target'"));
}

}  // namespace
}  // namespace caesura::torch
