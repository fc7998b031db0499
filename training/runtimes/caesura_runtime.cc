// SPDX-License-Identifier: Apache-2.0
// The plug-in libcaesura_runtime_caesura.so: model ops (core/custom_ops/model_op.h) that are ONNX
// models, run by sessions of libcaesura itself, with its gradients.
//
// Options: threads (0: as many as a session takes).
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "core/base/status_macros.h"
#include "core/onnx/model_reader.h"
#include "core/plugin/plugin_library.h"
#include "core/session/session.h"
#include "graph_transforms/pipeline.h"
#include "training/session/split_module.h"

namespace {

using caesura::GiveStatus;
using caesura::NamedValues;
using caesura::Result;
using caesura::RuntimeValue;
using caesura::Status;
using caesura::TakeStatus;
using caesura::Tensor;
using caesura::Value;

const CaesuraOpApi* api = nullptr;

struct LoadedModel {
  caesura::Model model;  // for the gradient
  int threads = 0;
  std::unique_ptr<caesura::Session> session;
  std::mutex mutex;  // of `module`, which is made when the first gradient is asked for
  std::unique_ptr<caesura::SplitModule> module;
};

Result<int> ReadOptions(const CaesuraOpNode* node) {
  const CaesuraOptions* options = api->node_options(node);
  int threads = 0;
  for (size_t i = 0; i < options->count; ++i) {
    const std::string key = options->keys[i], value = options->values[i];
    if (key != "threads")
      return caesura::InvalidArgument("there is no option '" + key + "'; known are: threads");
    if (value.empty() || value.size() > 4 ||
        value.find_first_not_of("0123456789") != std::string::npos) {
      return caesura::InvalidArgument("option threads: expected a number, got '" + value + "'");
    }
    threads = std::stoi(value);
  }
  return threads;
}

Status Load(const CaesuraOpNode* node, std::string_view bytes, void** out) {
  auto loaded = std::make_unique<LoadedModel>();
  ASSIGN_OR_RETURN(loaded->threads, ReadOptions(node));
  ASSIGN_OR_RETURN(loaded->model, caesura::ReadModelBytes(bytes));
  caesura::SessionOptions options;
  options.threads = loaded->threads;
  options.passes = caesura::InferencePasses;
  ASSIGN_OR_RETURN(loaded->session,
                   caesura::Session::Create(loaded->model.Clone(), std::move(options)));
  *out = loaded.release();
  return {};
}

// Equal symbols become equal numbers below -1.
Status DescribeValues(const std::vector<Value*>& values, std::map<std::string, int64_t>* symbols,
                      CaesuraOpNode* description,
                      CaesuraStatus* (*describe)(CaesuraOpNode*, const char*, int32_t, int32_t,
                                                 const int64_t*)) {
  for (const Value* value : values) {
    const caesura::ValueType& type = value->type();
    if (!type.is_tensor()) return caesura::Unsupported("'" + value->name() + "' is no tensor");
    std::vector<int64_t> dims;
    for (size_t i = 0; type.shape && i < type.shape->size(); ++i) {
      const caesura::Dim& dim = (*type.shape)[i];
      const int64_t fresh = -2 - static_cast<int64_t>(symbols->size());
      dims.push_back(dim.known()          ? dim.value
                     : dim.symbol.empty() ? -1
                                          : symbols->try_emplace(dim.symbol, fresh).first->second);
    }
    const int32_t rank = type.shape ? static_cast<int32_t>(dims.size()) : -1;
    RETURN_IF_ERROR(TakeStatus(describe(description, value->name().c_str(),
                                        static_cast<int32_t>(type.dtype), rank, dims.data())));
  }
  return {};
}

Status Describe(const LoadedModel& model, CaesuraOpNode* description) {
  std::map<std::string, int64_t> symbols;
  RETURN_IF_ERROR(
      DescribeValues(model.model.graph->inputs(), &symbols, description, api->describe_input));
  return DescribeValues(model.model.graph->outputs(), &symbols, description, api->describe_output);
}

// Inputs from `first` on, by the model's names.
Result<NamedValues> Feeds(const LoadedModel& model, CaesuraContext* context, size_t first) {
  NamedValues feeds;
  for (const Value* input : model.model.graph->inputs()) {
    ASSIGN_OR_RETURN(const RuntimeValue value, [&]() -> Result<RuntimeValue> {
      CaesuraTensor given = {};
      RETURN_IF_ERROR(TakeStatus(api->input(context, first++, &given)));
      if (given.dtype == 0) return RuntimeValue();
      const caesura::Shape shape(std::vector<int64_t>(given.dims, given.dims + given.rank));
      return RuntimeValue(
          Tensor::Borrow(static_cast<caesura::DType>(given.dtype), shape, given.data));
    }());
    if (value.has_value()) feeds.emplace(input->name(), value);
  }
  return feeds;
}

Status CopyOutput(CaesuraContext* context, size_t i, const RuntimeValue& value) {
  if (!value.is_tensor())
    return caesura::Unsupported("output " + std::to_string(i) + " is no tensor");
  const Tensor& tensor = value.tensor();
  const CaesuraTensor shown = {tensor.raw(),          tensor.shape().begin(),
                               tensor.shape().rank(), static_cast<int32_t>(tensor.dtype()),
                               CAESURA_CPU,           0};
  return TakeStatus(api->copy_output(context, i, &shown));
}

Status Run(LoadedModel& model, CaesuraContext* context) {
  ASSIGN_OR_RETURN(const NamedValues feeds, Feeds(model, context, 0));
  ASSIGN_OR_RETURN(const std::vector<RuntimeValue> results, model.session->Run(feeds));
  for (size_t i = 0; i < results.size(); ++i) {
    if (api->output_is_present(context, i)) RETURN_IF_ERROR(CopyOutput(context, i, results[i]));
  }
  return {};
}

Result<caesura::SplitModule*> ModuleOf(LoadedModel& model) {
  std::lock_guard<std::mutex> lock(model.mutex);
  if (model.module != nullptr) return model.module.get();
  caesura::SplitModuleOptions options;
  options.frozen = {"*"};
  options.training = false;
  options.threads = model.threads;
  for (const Value* input : model.model.graph->inputs()) {
    if (caesura::IsDifferentiable(input->dtype())) options.inputs.push_back(input->name());
  }
  ASSIGN_OR_RETURN(model.module,
                   caesura::SplitModule::Create(model.model.Clone(), std::move(options)));
  return model.module.get();
}

// (dy..., x...) -> dx...
Status RunGradient(LoadedModel& model, CaesuraContext* context) {
  ASSIGN_OR_RETURN(caesura::SplitModule* const module, ModuleOf(model));
  const size_t outputs = model.model.graph->outputs().size();
  ASSIGN_OR_RETURN(const NamedValues feeds, Feeds(model, context, outputs));
  std::vector<RuntimeValue> dys;
  for (size_t i = 0; i < outputs; ++i) {
    CaesuraTensor given = {};
    RETURN_IF_ERROR(TakeStatus(api->input(context, i, &given)));
    if (given.dtype == 0) {
      dys.emplace_back();
      continue;
    }
    const caesura::Shape shape(std::vector<int64_t>(given.dims, given.dims + given.rank));
    dys.push_back(Tensor::Borrow(static_cast<caesura::DType>(given.dtype), shape, given.data));
  }
  ASSIGN_OR_RETURN(caesura::ForwardRun run, module->Forward(feeds));
  ASSIGN_OR_RETURN(const std::vector<RuntimeValue> gradients, run.Backward(std::move(dys)));
  const std::vector<Value*>& inputs = model.model.graph->inputs();
  for (size_t i = 0; i < inputs.size(); ++i) {
    if (!api->output_is_present(context, i)) continue;
    const std::vector<std::string>& names = module->gradient_names();
    const size_t k = std::find(names.begin(), names.end(), inputs[i]->name()) - names.begin();
    if (k == names.size())
      return caesura::InvalidArgument("input '" + inputs[i]->name() + "' has no gradient");
    RETURN_IF_ERROR(CopyOutput(context, i, gradients[k]));
  }
  return {};
}

}  // namespace

extern "C" __attribute__((visibility("default"))) CaesuraStatus* CaesuraPluginMain(
    const CaesuraApi* table, CaesuraPlugin* plugin) {
  api = table->op;
  CaesuraModelRuntime runtime = {};
  runtime.size = sizeof(runtime);
  runtime.name = "caesura";
  runtime.load = [](const CaesuraOpNode* node, const void* bytes, size_t size, const void*, size_t,
                    void** model) {
    return GiveStatus(Load(node, {static_cast<const char*>(bytes), size}, model));
  };
  runtime.unload = [](void* model) { delete static_cast<LoadedModel*>(model); };
  runtime.describe = [](void* model, CaesuraOpNode* description) {
    return GiveStatus(Describe(*static_cast<LoadedModel*>(model), description));
  };
  // Sessions keep the states of their runs themselves.
  runtime.create_run = [](void* model, void** run) {
    *run = model;
    return GiveStatus({});
  };
  runtime.run = [](void* run, CaesuraContext* context) {
    return GiveStatus(Run(*static_cast<LoadedModel*>(run), context));
  };
  runtime.run_gradient = [](void* run, CaesuraContext* context) {
    return GiveStatus(RunGradient(*static_cast<LoadedModel*>(run), context));
  };
  return table->add_model_runtime(plugin, &runtime);
}
