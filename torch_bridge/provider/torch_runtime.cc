// SPDX-License-Identifier: Apache-2.0
// The plug-in libcaesura_runtime_torch.so: model ops (core/custom_ops/model_op.h) that LibTorch
// runs.
//   TorchScript archives (torch.jit.save), with LibTorch's own gradients. Parameters of the archive
//   are frozen. No options. AOTInductor packages (torch._inductor.aoti_compile_and_package),
//   without gradients: compiled code, that is loaded into the process and does what it likes there.
//   Option runners: runs at the same time (1); others wait. Outputs come fresh.
// Neither tells types of inputs and outputs: the node states them. A package does not even check
// them: they must be those that it was compiled for. Outputs are called "output", or "output_0" and
// so on where there are several; so are a package's inputs, "input" or "input_0" and so on.
#include <ATen/Functions.h>
#include <ATen/core/grad_mode.h>
#include <torch/csrc/autograd/autograd.h>

#include "core/plugin/caesura_op.hpp"
#include "torch_bridge/provider/torch_runtime_model.h"
#include "torch_bridge/torch_tensor.h"

namespace {

using caesura::plugin::Check;
using caesura::plugin::Error;
using caesura::plugin::Guard;
using caesura::plugin::Node;
using caesura::plugin::OpApi;
using caesura::torch::RuntimeModel;

// LibTorch's error without its stack.
template <typename Fn>
CaesuraStatus* GuardTorch(Fn&& fn) noexcept {
  return Guard([&] {
    try {
      fn();
    } catch (const c10::Error& error) {
      throw Error(CAESURA_INVALID_ARGUMENT, error.what_without_backtrace());
    }
  });
}

CaesuraStatus* Load(const CaesuraOpNode* node, const void* bytes, size_t size, const void*, size_t,
                    void** model) {
  return GuardTorch([&] {
    *model = caesura::torch::LoadRuntimeModel(bytes, size, Node(node).options()).release();
  });
}

CaesuraStatus* Describe(void* model, CaesuraOpNode* description) {
  return Guard([&] {
    const RuntimeModel& loaded = *static_cast<RuntimeModel*>(model);
    for (const std::string& name : loaded.inputs())
      Check(OpApi().describe_input(description, name.c_str(), 0, -1, nullptr));
    for (const std::string& name : loaded.outputs())
      Check(OpApi().describe_output(description, name.c_str(), 0, -1, nullptr));
  });
}

CaesuraStatus* CheckGradient(void* model) {
  return Guard([&] {
    if (static_cast<RuntimeModel*>(model)->has_gradient()) return;
    throw Error(CAESURA_UNSUPPORTED,
                "an AOTInductor package computes no gradient; give the node a gradient_model of "
                "(x..., dy...) -> (dx...), or the model as a TorchScript archive");
  });
}

// Undefined for an absent one. LibTorch only reads it.
at::Tensor Input(CaesuraContext* context, size_t i) {
  CaesuraTensor given = {};
  Check(OpApi().input(context, i, &given));
  if (given.dtype == 0) return {};
  const auto type = caesura::torch::ScalarTypeOf(static_cast<caesura::DType>(given.dtype));
  if (!type)
    throw Error(CAESURA_UNSUPPORTED,
                "dtype " + std::to_string(given.dtype) + " is none of LibTorch's");
  const caesura::Shape shape(std::vector<int64_t>(given.dims, given.dims + given.rank));
  return caesura::torch::BorrowBytes(given.data, *type, shape);
}

void CopyOutput(CaesuraContext* context, size_t i, const at::Tensor& result) {
  const at::Tensor dense = result.detach().contiguous();
  const CaesuraTensor shown = {dense.data_ptr(),
                               dense.sizes().data(),
                               static_cast<int32_t>(dense.dim()),
                               static_cast<int32_t>(caesura::torch::DTypeOf(dense.scalar_type())),
                               CAESURA_CPU,
                               0};
  Check(OpApi().copy_output(context, i, &shown));
}

CaesuraStatus* Run(void* run, CaesuraContext* context) {
  return GuardTorch([&] {
    const at::AutoGradMode no_gradients(false);
    std::vector<at::Tensor> inputs;
    for (size_t i = 0; i < OpApi().input_count(context); ++i) inputs.push_back(Input(context, i));
    const std::vector<at::Tensor> results = static_cast<RuntimeModel*>(run)->Forward(inputs);
    if (results.size() != OpApi().output_count(context)) {
      throw Error(CAESURA_INVALID_MODEL,
                  "the model returns " + std::to_string(results.size()) + " tensors");
    }
    for (size_t i = 0; i < results.size(); ++i) {
      if (OpApi().output_is_present(context, i)) CopyOutput(context, i, results[i]);
    }
  });
}

// (dy..., x...) -> dx...
CaesuraStatus* RunGradient(void* run, CaesuraContext* context) {
  return GuardTorch([&] {
    const RuntimeModel& model = *static_cast<RuntimeModel*>(run);
    const at::AutoGradMode gradients(true);
    std::vector<at::Tensor> inputs, wanted, ys, dys;
    std::vector<size_t> indices;
    for (size_t i = 0; i < model.inputs().size(); ++i) {
      inputs.push_back(Input(context, model.outputs().size() + i));
      if (i >= OpApi().output_count(context) || OpApi().output_is_present(context, i) == 0)
        continue;
      wanted.push_back(inputs.back().set_requires_grad(true));
      indices.push_back(i);
    }
    const std::vector<at::Tensor> results = model.Forward(inputs);
    for (size_t i = 0; i < results.size(); ++i) {
      const at::Tensor dy = Input(context, i);
      if (!dy.defined() || !results[i].requires_grad()) continue;
      ys.push_back(results[i]);
      dys.push_back(dy);
    }
    std::vector<at::Tensor> dxs(wanted.size());
    if (!ys.empty())
      dxs = torch::autograd::grad(ys, wanted, dys, /*retain_graph=*/false, /*create_graph=*/false,
                                  /*allow_unused=*/true);
    for (size_t k = 0; k < dxs.size(); ++k) {
      CopyOutput(context, indices[k], dxs[k].defined() ? dxs[k] : at::zeros_like(wanted[k]));
    }
  });
}

}  // namespace

extern "C" __attribute__((visibility("default"))) CaesuraStatus* CaesuraPluginMain(
    const CaesuraApi* api, CaesuraPlugin* plugin) {
  caesura::plugin::Use(api);
  CaesuraModelRuntime runtime = {};
  runtime.size = sizeof(runtime);
  runtime.name = "torch";
  runtime.load = Load;
  runtime.unload = [](void* model) { delete static_cast<RuntimeModel*>(model); };
  runtime.describe = Describe;
  // Models are for any number of threads.
  runtime.create_run = [](void* model, void** run) -> CaesuraStatus* {
    *run = model;
    return nullptr;
  };
  runtime.run = Run;
  runtime.run_gradient = RunGradient;
  runtime.check_gradient = CheckGradient;
  return api->add_model_runtime(plugin, &runtime);
}
