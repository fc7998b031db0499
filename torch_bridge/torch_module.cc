// SPDX-License-Identifier: Apache-2.0
#include "torch_bridge/torch_module.h"

#include <ATen/Context.h>
#include <ATen/Functions.h>
#include <torch/csrc/autograd/function.h>
#include <torch/csrc/autograd/functions/utils.h>
#include <torch/csrc/autograd/graph_task.h>

#include <algorithm>
#include <optional>

#include "core/providers/cpu_provider.h"
#include "torch_bridge/checked.h"
#include "torch_bridge/torch_stream.h"
#include "torch_bridge/torch_tensor.h"
#include "core/gradient/training_mode.h"
#include "training/step/parameters.h"
#include "training/step/step_program.h"
#include "training/step/trainable.h"

namespace caesura::torch {
namespace {

using ::torch::autograd::variable_list;
using NnModule = ::torch::nn::Module;

::torch::Tensor TensorOf(const RuntimeValue& value) {
  TORCH_CHECK(value.is_tensor(), "an output is no tensor: LibTorch has nothing to hold it");
  return Checked(ToTorch(value.tensor()));
}

// On the GPU, where there is one: what a kernel of the host has made is brought there.
::torch::Tensor TensorOn(const std::shared_ptr<const ExecutionProvider>& gpu,
                         const RuntimeValue& value) {
  if (gpu == nullptr || !value.is_tensor()) return TensorOf(value);
  return TensorOf(LentToTorch(value.tensor(), gpu)).to(*TorchDeviceOf(gpu->device()));
}

std::vector<::torch::Tensor> TensorsOn(const std::shared_ptr<const ExecutionProvider>& gpu,
                                       const std::vector<RuntimeValue>& values) {
  std::vector<::torch::Tensor> out;
  for (const RuntimeValue& value : values) out.push_back(TensorOn(gpu, value));
  return out;
}

// Returns what `call` returns. On a GPU its work follows PyTorch's earlier work, and PyTorch's
// later work follows it. REQUIRES: the caller holds the tensors that the call reads.
template <typename Call>
auto InOrder(const std::shared_ptr<const ExecutionProvider>& gpu, Call call) {
  if (gpu != nullptr) Checked(WaitForTorch(*gpu));
  auto result = call();
  const Status ordered = gpu == nullptr ? Status() : TorchWaits(*gpu);
  auto out = Checked(std::move(result));
  Checked(ordered);
  return out;
}

NamedValues FeedsOf(const TensorMap& tensors) {
  NamedValues feeds;
  for (const auto& [name, tensor] : tensors) feeds[name] = Checked(FromTorch(tensor));
  return feeds;
}

// PyTorch's count of changes in place, and what it was.
struct Seen {
  std::string name;
  c10::VariableVersion counter;
  uint32_t version;
};

}  // namespace

// --- backward ---

class Module::Backward : public ::torch::autograd::Node {
 public:
  Backward(ForwardRun run, std::vector<int> outputs,
           const std::map<std::string, ::torch::Tensor>& sources, Specialization program,
           NamedValues feeds)
      : program_(std::move(program)),
        feeds_(std::move(feeds)),
        run_(std::move(run)),
        output_count_(run_->outputs.size()),
        outputs_(std::move(outputs)) {
    run_->outputs.clear();  // the caller's
    for (const auto& [name, tensor] : sources) {
      if (tensor.is_inference()) continue;  // has no counter
      const c10::VariableVersion& counter = ::torch::autograd::impl::version_counter(tensor);
      seen_.push_back({name, counter, counter.current_version()});
    }
  }

  variable_list apply(variable_list&& dys) override {
    std::lock_guard<std::mutex> lock(mutex_);
    TORCH_CHECK(!at::GradMode::is_enabled(),
                "caesura::torch::Module has no second derivatives (create_graph)");
    TORCH_CHECK(run_ && run_->pending(),
                "this forward's values were freed by its backward: ask for retain_graph there");
    for (const Seen& seen : seen_) {
      TORCH_CHECK(seen.counter.current_version() == seen.version, "'", seen.name,
                  "' was changed in place between forward and backward");
    }
    std::vector<RuntimeValue> gradients(output_count_);
    for (size_t k = 0; k < outputs_.size(); ++k) {
      if (dys[k].defined()) gradients[outputs_[k]] = Checked(FromTorch(dys[k]));
    }
    const bool keep = ::torch::autograd::get_current_graph_task_keep_graph();
    const std::vector<RuntimeValue> results =
        InOrder(program_.gpu, [&] { return run_->Backward(std::move(gradients), keep); });
    variable_list dxs(results.size());
    for (size_t i = 0; i < results.size(); ++i) {
      if (task_should_compute_output(i)) dxs[i] = TensorOn(program_.gpu, results[i]);
    }
    return dxs;
  }

  void release_variables() override {
    std::lock_guard<std::mutex> lock(mutex_);
    run_.reset();
    feeds_.clear();
    program_.module.reset();
  }

  std::string name() const override { return "CaesuraBackward"; }

 private:
  // The run lets go of feeds and parameters before PyTorch's stream waits for its work.
  Specialization program_;
  NamedValues feeds_;
  std::optional<ForwardRun> run_;
  size_t output_count_;
  std::vector<int> outputs_;  // that dys are the gradients of
  std::vector<Seen> seen_;
};

// --- the module ---

Module::Module(Model model, ModuleOptions options)
    : NnModule("caesura::torch::Module"), model_(std::move(model)), options_(std::move(options)) {
  for (const Value* input : model_.graph->inputs()) {
    if (model_.graph->Initializer(input) == nullptr) input_names_.push_back(input->name());
  }
  for (const std::string& name :
       Checked(TrainableNames(model_, {options_.trainable, options_.frozen}))) {
    AddState(name, /*is_parameter=*/true);
  }
  const std::unordered_set<const Value*> statistics = RunningStatistics(*model_.graph);
  for (const Value* value : model_.graph->Values()) {
    if (statistics.count(value)) AddState(value->name(), /*is_parameter=*/false);
  }
  const Device first = options_.providers.empty() ? Device() : options_.providers[0]->device();
  if (first.is_host()) return;
  const std::optional<::torch::Device> there = TorchDeviceOf(first);
  TORCH_CHECK(there, "this PyTorch has no device ", first.ToString(), ", where ",
              options_.providers[0]->name(), " works");
  NnModule::to(*there);
}

// A copy of the initializer, as the torch tensor and in the model.
void Module::AddState(const std::string& name, bool is_parameter) {
  Value* value = model_.graph->FindValue(name);
  Tensor own = Checked(model_.graph->Initializer(value)->Clone());
  ::torch::Tensor tensor = Checked(ToTorch(own));
  state_.push_back({name, tensor, own.raw(), is_parameter});
  model_.graph->SetInitializer(value, std::move(own));

  NnModule* owner = this;
  std::string rest = name;
  if (name.front() == '.' || name.back() == '.' || name.find("..") != std::string::npos) {
    std::replace(rest.begin(), rest.end(), '.', '_');  // LibTorch's names are not empty
  }
  for (size_t dot; (dot = rest.find('.')) != std::string::npos; rest.erase(0, dot + 1)) {
    const std::string child = rest.substr(0, dot);
    const auto children = owner->named_children();
    const auto* found = children.find(child);
    owner = found != nullptr ? found->get()
                             : owner->register_module(child, std::make_shared<NnModule>()).get();
  }
  if (is_parameter) owner->register_parameter(rest, std::move(tensor));
  else owner->register_buffer(rest, std::move(tensor));
}

::torch::Device Module::DeviceFor(const std::vector<::torch::Tensor>& inputs) const {
  if (state_.empty()) return inputs.empty() ? ::torch::Device(at::kCPU) : inputs[0].device();
  const ::torch::Device device = state_[0].tensor.device();
  for (const State& state : state_) {
    TORCH_CHECK(state.tensor.device() == device, "parameter '", state.name, "' is on ",
                state.tensor.device(), ", but '", state_[0].name, "' is on ", device);
  }
  return device;
}

// The providers that serve the device come first, then those of the host.
ProviderList Module::ProvidersOn(Device device) {
  ProviderList out, host;
  for (const auto& provider : options_.providers) {
    if (provider->device().is_host()) host.push_back(provider);
    else if (provider->device() == device) out.push_back(provider);
  }
  for (const auto& provider : own_) {
    if (provider->device() == device) out.push_back(provider);
  }
  if (out.empty() && !device.is_host()) {
    TORCH_CHECK(device.type == DeviceType::kCuda, "none of the module's providers serves ",
                device.ToString());
    CudaOptions cuda;
    cuda.device_id = device.index;
    cuda.tf32 = at::globalContext().allowTF32CuBLAS();
    own_.push_back(Checked(MakeCudaProviderOnTorch(cuda)));
    out.push_back(own_.back());
  }
  if (host.empty()) host.push_back(MakeCpuProvider());
  out.insert(out.end(), host.begin(), host.end());
  return out;
}

Module::Specialization Module::SpecializationFor(Variant variant) {
  std::lock_guard<std::mutex> lock(mutex_);
  for (State& state : state_) {
    if (state.tensor.const_data_ptr() == state.bytes) continue;
    // set_data, or to(), has given the parameter other bytes. Runs in flight keep the old ones.
    Tensor present = Checked(FromTorch(state.tensor.detach()));
    Value* value = model_.graph->FindValue(state.name);
    TORCH_CHECK(present.raw() == state.tensor.const_data_ptr(), "parameter '", state.name,
                "' is not contiguous");
    TORCH_CHECK(present.dtype() == value->dtype() &&
                    present.shape() == model_.graph->Initializer(value)->shape(),
                "parameter '", state.name, "' is now ", DTypeName(present.dtype()),
                present.shape().ToString(), ", but the model's is ", value->type().ToString());
    state.bytes = present.raw();
    model_.graph->SetInitializer(value, std::move(present));
    specializations_.clear();
  }
  for (const Specialization& program : specializations_) {
    if (program.variant == variant) return program;
  }
  SplitModuleOptions split;
  split.trainable = options_.trainable;
  split.frozen = options_.frozen;
  split.training = variant.training;
  split.unbiased_statistics = true;  // as those of torch::nn are
  split.inputs = variant.wanted;
  split.providers = ProvidersOn(variant.device);
  split.gradients_on_device = split.predictions_on_device = !variant.device.is_host();
  if (!variant.device.is_host()) split.device_inputs = InputsWithDims(*model_.graph);
  split.threads = options_.threads;
  split.seed = options_.seed;
  split.share_parameters = true;
  Gpu gpu = variant.device.is_host() ? nullptr : split.providers[0];
  std::shared_ptr<SplitModule> module =
      Checked(SplitModule::Create(model_.Clone(), std::move(split)));
  return specializations_.emplace_back(
      Specialization{std::move(variant), std::move(module), std::move(gpu)});
}

std::vector<::torch::Tensor> Module::forward_all(const std::vector<::torch::Tensor>& inputs) {
  TORCH_CHECK(inputs.size() == input_names_.size(), "the model has ", input_names_.size(),
              " inputs, got ", inputs.size());
  std::map<std::string, ::torch::Tensor> sources;
  std::vector<std::string> wanted;
  bool differentiable = false;
  for (size_t i = 0; i < inputs.size(); ++i) {
    sources[input_names_[i]] = inputs[i];
    if (inputs[i].requires_grad()) wanted.push_back(input_names_[i]);
  }
  const NamedValues feeds = FeedsOf(sources);
  const ::torch::Device device = DeviceFor(inputs);
  for (size_t i = 0; i < inputs.size(); ++i) {
    const bool is_number = inputs[i].dim() == 0 && inputs[i].is_cpu();
    TORCH_CHECK(inputs[i].device() == device || is_number, "input '", input_names_[i], "' is on ",
                inputs[i].device(), ", but the module is on ", device,
                ": move the one or the other with to()");
  }
  for (const State& state : state_) {
    sources[state.name] = state.tensor;
    differentiable = differentiable || state.tensor.requires_grad();
  }
  if (!at::GradMode::is_enabled()) wanted.clear();
  const std::optional<Device> known = DeviceOf(device);
  TORCH_CHECK(known, "the module is on ", device, ", where nothing is computed");
  const Specialization program = SpecializationFor({is_training(), wanted, *known});
  if (at::GradMode::is_enabled() && (differentiable || !wanted.empty())) {
    return Differentiable(program, feeds, std::move(sources));
  }
  const auto outputs = InOrder(program.gpu, [&]() -> Result<std::vector<RuntimeValue>> {
    if (!is_training()) return program.module->Predict(feeds);
    Result<ForwardRun> run = program.module->Forward(feeds);
    if (!run.ok()) return run.status();
    return std::move(run->outputs);
  });
  return TensorsOn(program.gpu, outputs);
}

std::vector<::torch::Tensor> Module::Differentiable(
    const Specialization& program, const NamedValues& feeds,
    std::map<std::string, ::torch::Tensor> sources) {
  ForwardRun run = InOrder(program.gpu, [&] { return program.module->Forward(feeds); });
  std::vector<::torch::Tensor> outputs = TensorsOn(program.gpu, run.outputs);
  std::vector<::torch::Tensor> differentiated;
  for (const std::string& name : program.module->gradient_names())
    differentiated.push_back(sources.at(name));
  for (const State& state :
       state_) {  // running statistics are written in training, where no backward reads them
    if (!state.is_parameter && is_training()) sources.erase(state.name);
  }
  const std::vector<int> taking = program.module->differentiable_outputs();
  auto node = c10::make_intrusive<Backward>(std::move(run), taking, sources, program, feeds);
  node->set_next_edges(::torch::autograd::collect_next_edges(differentiated));
  for (int i : taking) ::torch::autograd::set_history(outputs[i], node);
  return outputs;
}

::torch::Tensor Module::forward(const ::torch::Tensor& input) {
  std::vector<::torch::Tensor> outputs = forward_all({input});
  TORCH_CHECK(outputs.size() == 1, "the model has ", outputs.size(), " outputs: call forward_all");
  return std::move(outputs[0]);
}

std::shared_ptr<NnModule> Module::clone(const std::optional<::torch::Device>& device) const {
  at::NoGradGuard no_grad;
  Model model = model_.Clone();
  for (const State& state : state_) {  // on the host, where a new module begins
    Value* value = model.graph->FindValue(state.name);
    const at::Tensor host = state.tensor.detach().to(at::kCPU, *ScalarTypeOf(value->dtype()));
    model.graph->SetInitializer(value, Checked(FromTorch(host)));
  }
  auto copy = std::make_shared<Module>(std::move(model), options_);
  for (size_t i = 0; i < state_.size(); ++i)
    copy->state_[i].tensor.set_requires_grad(state_[i].tensor.requires_grad());
  copy->NnModule::to(device ? *device : DeviceFor({}));
  copy->train(is_training());
  return copy;
}

// --- whole steps ---

TrainingStep::TrainingStep(Model model, TrainingOptions options)
    : providers_(options.providers),
      session_(Checked(TrainingSession::Create(std::move(model), std::move(options)))) {}

NamedValues TrainingStep::Take(const TensorMap& feeds) const {
  for (const auto& provider : providers_) Checked(WaitForTorch(*provider));
  return FeedsOf(feeds);
}

void TrainingStep::LetGo() const {
  for (const auto& provider : providers_) Checked(TorchWaits(*provider));
}

::torch::Tensor TrainingStep::step(const TensorMap& feeds) {
  const Result<double> loss = session_->Step(Take(feeds));
  LetGo();
  return at::scalar_tensor(Checked(loss), at::kDouble);
}

std::vector<::torch::Tensor> TrainingStep::predict(const TensorMap& feeds) {
  Result<std::vector<RuntimeValue>> outputs = session_->Predict(Take(feeds));
  LetGo();
  return TensorsOn(nullptr, Checked(std::move(outputs)));
}

TensorMap TrainingStep::parameters() const {
  TensorMap out;
  for (const std::string& name : session_->parameters().Names())
    out[name] = Checked(ToTorch(Checked(session_->parameters().Get(name))));
  return out;
}

}  // namespace caesura::torch
