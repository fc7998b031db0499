// SPDX-License-Identifier: Apache-2.0
// caesura::torch::Module on a GPU: PyTorch's CUDA device and ours are both the stand-in driver
// (standin_cuda_device.cc, tests/cuda), which checks the order of all accesses.
#include <torch/nn/functional/loss.h>
#include <torch/optim/adamw.h>

#include <memory>

#include "core/onnx/model_reader.h"
#include "tests/core/providers/cuda/standin_cuda.h"
#include "torch_bridge/torch_module.h"
#include "torch_bridge/torch_stream.h"

extern "C" void standin_torch_use_other_stream(bool use);

namespace caesura::torch {
namespace {

using ::testing::HasSubstr;
namespace F = ::torch::nn::functional;

const at::Device kGpu(at::kCUDA, 0);

Model Parse(const std::string& graph) {
  return ParseModelText("<ir_version: 10, opset_import: [\"\": 21]>\n" + graph).value();
}

// x [N, 8] -> scores [N, 4], with weights of small numbers.
Model Mlp() {
  Model model = Parse(
      "mlp (float[N, 8] x, float[8, 16] \"a.weight\", float[16] \"a.bias\", float[16, 4] "
      "\"b.weight\", float[4] \"b.bias\") => (float[N, 4] scores) {\n"
      "  h = Gemm (x, \"a.weight\", \"a.bias\")\n  t = Gelu (h)\n"
      "  scores = Gemm (t, \"b.weight\", \"b.bias\") }");
  const std::vector<Value*> inputs = model.graph->inputs();
  for (size_t i = 1; i < inputs.size(); ++i) {
    std::vector<int64_t> dims;
    for (const auto& dim : *inputs[i]->type().shape) dims.push_back(dim.value);
    Tensor weight = Tensor::Zeros(DType::kFloat32, Shape(dims));
    for (int64_t e = 0; e < weight.elements(); ++e)
      weight.data<float>()[e] = static_cast<float>((e * 7 + static_cast<int64_t>(i)) % 13 - 6) / 16;
    model.graph->RemoveInput(inputs[i]);
    model.graph->SetInitializer(inputs[i], std::move(weight));
  }
  return model;
}

at::Tensor Inputs(int step) {
  return at::sin(at::arange(48, at::kFloat) + step * 3).reshape({6, 8});
}
const at::Tensor& Labels() {
  static const at::Tensor labels = at::arange(6).remainder(4);
  return labels;
}

std::string ErrorOf(const std::function<void()>& call) {
  try {
    call();
  } catch (const c10::Error& error) {
    return error.what_without_backtrace();
  }
  return "";
}

class CudaTorchModule : public testing::StandinCuda {
 protected:
  void TearDown() override {
    standin_torch_use_other_stream(false);
    testing::StandinCuda::TearDown();
  }
  // Ours in PyTorch's memory and on its stream; or with a pool and a stream of its own.
  static ModuleOptions OnTheGpu(bool shares = true) {
    return {.providers = {shares ? MakeCudaProviderOnTorch(Options()).value() : Provider()}};
  }
  // The losses of 20 steps of a LibTorch loop.
  static std::vector<double> Losses(Module& module, at::Device device) {
    ::torch::optim::AdamW optimizer(module.parameters(), ::torch::optim::AdamWOptions(1e-2));
    std::vector<double> losses;
    const at::Tensor labels = Labels().to(device);
    for (int step = 0; step < 20; ++step) {
      optimizer.zero_grad();
      const at::Tensor scores = module.forward(Inputs(step).to(device));
      EXPECT_EQ(scores.device(), device);
      const at::Tensor loss = F::cross_entropy(scores, labels);
      loss.backward();
      optimizer.step();
      losses.push_back(loss.item<double>());
    }
    for (const at::Tensor& parameter : module.parameters()) {
      EXPECT_EQ(parameter.device(), device);
      EXPECT_EQ(parameter.grad().device(), device);
    }
    return losses;
  }
  void ExpectTheCpusLosses(Module& module) {
    Module here(Mlp());
    const std::vector<double> wanted = Losses(here, at::kCPU), got = Losses(module, kGpu);
    for (size_t i = 0; i < wanted.size(); ++i) EXPECT_NEAR(got[i], wanted[i], 1e-5) << i;
    EXPECT_LT(wanted.back(), wanted.front());
    EXPECT_GT(Operations("cublasLtMatmul"), 0u);
  }
  uint64_t Calls(const char* function) const {
    return Call<decltype(standin_calls)>("standin_calls")(function);
  }
  // Copies between host and device, and waits of the host.
  std::vector<uint64_t> Costs() const {
    return {Calls("cuMemcpyHtoDAsync"), Calls("cuMemcpyDtoHAsync"),
            Call<decltype(standin_host_waits)>("standin_host_waits")()};
  }
};

TEST_F(CudaTorchModule, TrainsAsOnTheCpuWhereItsProviderIs) {
  Module module(Mlp(), OnTheGpu());
  ExpectTheCpusLosses(module);
}

TEST_F(CudaTorchModule, TrainsBesideAnotherStream) {
  standin_torch_use_other_stream(true);
  Module module(Mlp(), OnTheGpu());
  ExpectTheCpusLosses(module);
}

TEST_F(CudaTorchModule, TrainsWithMemoryAndAStreamOfItsOwn) {
  standin_torch_use_other_stream(true);
  Module module(Mlp(), OnTheGpu(/*shares=*/false));
  ExpectTheCpusLosses(module);
}

TEST_F(CudaTorchModule, NothingCrossesToTheHost) {
  standin_torch_use_other_stream(true);
  Module module(Mlp(), OnTheGpu());
  const at::Tensor x = Inputs(0).to(kGpu).set_requires_grad(true);
  const at::Tensor dy = at::ones({6, 4}).to(kGpu);
  for (int round = 0; round < 2; ++round) {
    module.zero_grad();
    x.mutable_grad() = at::Tensor();
    const std::vector<uint64_t> before = Costs();
    at::Tensor y = module.forward(x);
    y.backward(dy);
    if (round > 0) {  // constants were copied in the first one
      EXPECT_EQ(Costs(), before);
    }
    const at::NoGradGuard no_grad;
    module.eval();
    const at::Tensor predicted = module.forward(x);
    const std::vector<uint64_t> prepared = Costs();
    module.forward(x);
    EXPECT_EQ(Costs(), prepared);
    EXPECT_TRUE(at::allclose(predicted.cpu(), y.cpu(), 1e-5, 1e-6));
    module.train();
  }
  EXPECT_TRUE(x.grad().is_cuda());
}

// Gradients of the input and all parameters; a graph that is kept; outputs that are overwritten.
TEST_F(CudaTorchModule, GradientsAreTheCpus) {
  const auto gradients = [](Module& module, at::Device device) {
    at::Tensor x = Inputs(1).to(device).set_requires_grad(true);
    at::Tensor first = module.forward(x), second = module.forward(x);
    second.backward(Inputs(2).narrow(1, 0, 4).to(device), /*retain_graph=*/true);
    first.detach().zero_();
    first.backward(Inputs(3).narrow(1, 2, 4).to(device));
    second.backward(at::ones({6, 4}).to(device));
    std::vector<at::Tensor> out = {x.grad().cpu()};
    for (const at::Tensor& parameter : module.parameters()) out.push_back(parameter.grad().cpu());
    return out;
  };
  Module here(Mlp()), there(Mlp(), OnTheGpu());
  const auto wanted = gradients(here, at::kCPU), got = gradients(there, kGpu);
  for (size_t i = 0; i < wanted.size(); ++i)
    EXPECT_TRUE(at::allclose(got[i], wanted[i], 1e-5, 1e-6)) << i;
}

TEST_F(CudaTorchModule, RunningStatisticsAreThere) {
  const auto model = Parse(
      "g (float[N, 3] x) => (float[N, 3] y) <float[3] weight = {1, 2, 3}, float[3] bias = {0, 1, "
      "2}, float[3] mean = {0, 0, 0}, float[3] variance = {1, 1, 1}> {\n"
      "  y = BatchNormalization <momentum = 0.9> (x, weight, bias, mean, variance) }");
  Module here(model.Clone()), there(model.Clone(), OnTheGpu());
  const at::Tensor x = at::linspace(-1, 1, 12).reshape({4, 3});
  for (int step = 0; step < 2; ++step)
    EXPECT_TRUE(at::allclose(there.forward(x.to(kGpu)).cpu(), here.forward(x), 1e-4, 1e-5));
  for (const char* name : {"mean", "variance"}) {
    const at::Tensor statistic = there.named_buffers()[name];
    EXPECT_TRUE(statistic.is_cuda());
    EXPECT_TRUE(at::allclose(statistic.cpu(), here.named_buffers()[name], 1e-5, 1e-6)) << name;
  }
  here.eval(), there.eval();
  EXPECT_TRUE(at::allclose(there.forward(x.to(kGpu)).cpu(), here.forward(x), 1e-4, 1e-5));
}

TEST_F(CudaTorchModule, MovesByTo) {
  Module module(Mlp(), OnTheGpu());
  module.to(at::kCPU);
  const at::Tensor here = module.forward(Inputs(0));
  EXPECT_TRUE(here.is_cpu());
  at::Tensor pending = module.forward(Inputs(0)).sum();
  module.to(at::kCUDA);
  const at::Tensor there = module.forward(Inputs(0).to(kGpu));
  EXPECT_TRUE(at::allclose(there.cpu(), here, 1e-5, 1e-6));
  const auto copy = std::dynamic_pointer_cast<Module>(module.clone());
  const auto on_host = std::dynamic_pointer_cast<Module>(module.clone(at::Device(at::kCPU)));
  {
    const at::NoGradGuard no_grad;
    for (at::Tensor& parameter : module.parameters()) parameter.zero_();
  }
  EXPECT_EQ(module.forward(Inputs(0).to(kGpu)).cpu().abs().max().item<float>(), 0);
  EXPECT_TRUE(at::allclose(copy->forward(Inputs(0).to(kGpu)).cpu(), here, 1e-5, 1e-6));
  EXPECT_TRUE(at::allclose(on_host->forward(Inputs(0)), here, 1e-5, 1e-6));
}

TEST_F(CudaTorchModule, TheWrongDeviceIsRefused) {
  Module module(Mlp(), OnTheGpu());
  EXPECT_EQ(ErrorOf([&] { module.forward(Inputs(0)); }),
            "input 'x' is on cpu, but the module is on cuda:0: move the one or the other with "
            "to()");
  at::Tensor bias = module.named_parameters()["a.bias"];
  bias.set_data(bias.cpu());
  EXPECT_EQ(ErrorOf([&] { module.forward(Inputs(0).to(kGpu)); }),
            "parameter 'a.bias' is on cpu, but 'a.weight' is on cuda:0");
  if (dlopen("libcuda.so.1", RTLD_NOW) != nullptr) return;
  Module bare(Mlp());
  bare.to(at::kCUDA);
  EXPECT_THAT(ErrorOf([&] { bare.forward(Inputs(0).to(kGpu)); }), HasSubstr("libcuda.so.1"));
}

// The module goes on with the CPU's kernels, on copies.
TEST_F(CudaTorchModule, AFailingGpuIsReplaced) {
  Module here(Mlp()), there(Mlp(), OnTheGpu());
  const auto step = [](Module& module, at::Device device) {
    module.zero_grad();
    module.forward(Inputs(0).to(device)).backward(at::ones({6, 4}).to(device));
    return module.named_parameters()["a.weight"].grad().clone();
  };
  const at::Tensor wanted = step(here, at::kCPU);
  step(there, kGpu);
  Call<decltype(standin_fail)>("standin_fail")("cuLaunchKernel", 1, 701);
  for (int round = 0; round < 2; ++round) {
    const at::Tensor got = step(there, kGpu);
    EXPECT_TRUE(got.is_cuda());
    EXPECT_TRUE(at::allclose(got.cpu(), wanted, 1e-5, 1e-6));
  }
}

// The checker sees this module's accesses: PyTorch's work beside them, on a stream without order.
TEST_F(CudaTorchModule, AMissingOrderIsReported) {
  standin_torch_use_other_stream(true);
  ModuleOptions options = OnTheGpu(/*shares=*/false);
  auto gpu = options.providers[0];
  auto module = std::make_unique<Module>(Mlp(), std::move(options));
  at::Tensor x = Inputs(0).to(kGpu);
  const at::NoGradGuard no_grad;
  module->forward(x);
  EXPECT_THAT(Reports(), ::testing::IsEmpty());
  const Tensor zeros = Tensor::Zeros(DType::kFloat32, Shape{6, 8});
  ASSERT_TRUE(
      gpu->Copy(CopyKind::kToDevice, x.mutable_data_ptr(), zeros.raw(), zeros.bytes()).ok());
  x = x.cpu();
  ASSERT_TRUE(gpu->Synchronise().ok());
  EXPECT_THAT(Reports(), ::testing::Not(::testing::IsEmpty()));
  module.reset();
  gpu.reset();
  Reports();  // freeing the memory that was written to without an order is one more
}

}  // namespace
}  // namespace caesura::torch
