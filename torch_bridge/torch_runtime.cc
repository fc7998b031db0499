// SPDX-License-Identifier: Apache-2.0
// The plug-in libcaesura_runtime_torch.so: model ops (core/session/model_op.h) that are TorchScript archives
// (torch.jit.save), run by LibTorch, with LibTorch's own gradients. Parameters of the archive are frozen. It takes no
// options. The archive tells no types of inputs and outputs: the node states them; outputs are called "output", or
// "output_0" and so on where there are several.
#include <torch/csrc/autograd/autograd.h>
#include <torch/script.h>

#include <sstream>

#include "core/plugin/caesura_op.hpp"
#include "torch_bridge/torch_tensor.h"

namespace {

using caesura::plugin::Check;
using caesura::plugin::Error;
using caesura::plugin::Guard;
using caesura::plugin::Node;
using caesura::plugin::OpApi;

struct LoadedModel {
  torch::jit::Module module;
  std::vector<std::string> inputs;
  size_t outputs = 1;
};

// What LibTorch throws without its stack.
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

size_t CountOutputs(const c10::FunctionSchema& schema) {
  if (schema.returns().size() != 1) return schema.returns().size();
  const auto tuple = schema.returns()[0].type()->cast<c10::TupleType>();
  return tuple == nullptr ? 1 : tuple->elements().size();
}

CaesuraStatus* Load(const CaesuraOpNode* node, const void* bytes, size_t size, const void*, size_t, void** model) {
  return GuardTorch([&] {
    for (const auto& [key, value] : Node(node).options()) {
      throw Error(CAESURA_INVALID_ARGUMENT, "there is no option '" + key + "'; known are: none");
    }
    auto loaded = std::make_unique<LoadedModel>();
    std::istringstream stream(std::string(static_cast<const char*>(bytes), size));
    loaded->module = torch::jit::load(stream, torch::kCPU);
    loaded->module.eval();
    for (const auto& parameter : loaded->module.parameters()) parameter.set_requires_grad(false);
    const c10::FunctionSchema& schema = loaded->module.get_method("forward").function().getSchema();
    for (size_t i = 1; i < schema.arguments().size(); ++i) loaded->inputs.push_back(schema.arguments()[i].name());
    loaded->outputs = CountOutputs(schema);
    *model = loaded.release();
  });
}

CaesuraStatus* Describe(void* model, CaesuraOpNode* description) {
  return Guard([&] {
    const LoadedModel& loaded = *static_cast<LoadedModel*>(model);
    for (const std::string& name : loaded.inputs) Check(OpApi().describe_input(description, name.c_str(), 0, -1, nullptr));
    for (size_t i = 0; i < loaded.outputs; ++i) {
      const std::string name = loaded.outputs == 1 ? "output" : "output_" + std::to_string(i);
      Check(OpApi().describe_output(description, name.c_str(), 0, -1, nullptr));
    }
  });
}

// Undefined for an absent one. LibTorch only reads it.
at::Tensor Input(CaesuraContext* context, size_t i) {
  CaesuraTensor given = {};
  Check(OpApi().input(context, i, &given));
  if (given.dtype == 0) return {};
  const auto type = caesura::torch::ScalarTypeOf(static_cast<caesura::DType>(given.dtype));
  if (!type) throw Error(CAESURA_UNSUPPORTED, "dtype " + std::to_string(given.dtype) + " is none of LibTorch's");
  const caesura::Shape shape(std::vector<int64_t>(given.dims, given.dims + given.rank));
  return caesura::torch::BorrowBytes(given.data, *type, shape);
}

std::vector<at::Tensor> Forward(LoadedModel& model, const std::vector<at::Tensor>& inputs) {
  const c10::IValue result = model.module.get_method("forward")({inputs.begin(), inputs.end()});
  std::vector<at::Tensor> out;
  if (result.isTensor()) {
    out.push_back(result.toTensor());
  } else if (result.isTensorList()) {
    out = result.toTensorVector();
  } else if (result.isTuple()) {
    for (const c10::IValue& element : result.toTupleRef().elements()) {
      if (!element.isTensor()) throw Error(CAESURA_UNSUPPORTED, "the module returns a tuple of other things than tensors");
      out.push_back(element.toTensor());
    }
  } else {
    throw Error(CAESURA_UNSUPPORTED, "the module returns no tensors but " + result.tagKind());
  }
  return out;
}

void CopyOutput(CaesuraContext* context, size_t i, const at::Tensor& result) {
  const at::Tensor dense = result.detach().contiguous();
  const CaesuraTensor shown = {dense.data_ptr(), dense.sizes().data(), static_cast<int32_t>(dense.dim()),
                               static_cast<int32_t>(caesura::torch::DTypeOf(dense.scalar_type())), CAESURA_CPU, 0};
  Check(OpApi().copy_output(context, i, &shown));
}

CaesuraStatus* Run(void* run, CaesuraContext* context) {
  return GuardTorch([&] {
    const at::AutoGradMode no_gradients(false);
    std::vector<at::Tensor> inputs;
    for (size_t i = 0; i < OpApi().input_count(context); ++i) inputs.push_back(Input(context, i));
    const std::vector<at::Tensor> results = Forward(*static_cast<LoadedModel*>(run), inputs);
    if (results.size() != OpApi().output_count(context)) {
      throw Error(CAESURA_INVALID_MODEL, "the module returns " + std::to_string(results.size()) + " tensors");
    }
    for (size_t i = 0; i < results.size(); ++i) {
      if (OpApi().output_is_present(context, i)) CopyOutput(context, i, results[i]);
    }
  });
}

// (dy..., x...) -> dx...
CaesuraStatus* RunGradient(void* run, CaesuraContext* context) {
  return GuardTorch([&] {
    LoadedModel& model = *static_cast<LoadedModel*>(run);
    const at::AutoGradMode gradients(true);
    std::vector<at::Tensor> inputs, wanted, ys, dys;
    std::vector<size_t> indices;
    for (size_t i = 0; i < model.inputs.size(); ++i) {
      inputs.push_back(Input(context, model.outputs + i));
      if (i >= OpApi().output_count(context) || OpApi().output_is_present(context, i) == 0) continue;
      wanted.push_back(inputs.back().set_requires_grad(true));
      indices.push_back(i);
    }
    const std::vector<at::Tensor> results = Forward(model, inputs);
    for (size_t i = 0; i < results.size(); ++i) {
      const at::Tensor dy = Input(context, i);
      if (!dy.defined() || !results[i].requires_grad()) continue;
      ys.push_back(results[i]);
      dys.push_back(dy);
    }
    std::vector<at::Tensor> dxs(wanted.size());
    if (!ys.empty()) dxs = torch::autograd::grad(ys, wanted, dys, /*retain_graph=*/false, /*create_graph=*/false, /*allow_unused=*/true);
    for (size_t k = 0; k < dxs.size(); ++k) {
      CopyOutput(context, indices[k], dxs[k].defined() ? dxs[k] : at::zeros_like(wanted[k]));
    }
  });
}

}  // namespace

extern "C" __attribute__((visibility("default"))) CaesuraStatus* CaesuraPluginMain(const CaesuraApi* api, CaesuraPlugin* plugin) {
  caesura::plugin::Use(api);
  CaesuraModelRuntime runtime = {};
  runtime.size = sizeof(runtime);
  runtime.name = "torch";
  runtime.load = Load;
  runtime.unload = [](void* model) { delete static_cast<LoadedModel*>(model); };
  runtime.describe = Describe;
  // A module's forward keeps nothing: many threads share it.
  runtime.create_run = [](void* model, void** run) -> CaesuraStatus* {
    *run = model;
    return nullptr;
  };
  runtime.run = Run;
  runtime.run_gradient = RunGradient;
  return api->add_model_runtime(plugin, &runtime);
}
