// SPDX-License-Identifier: Apache-2.0
#include "training/session/split_module.h"

#include <algorithm>
#include <new>
#include <set>
#include <unordered_set>
#include <utility>

#include "core/base/status_macros.h"
#include "core/providers/tensor_copy.h"
#include "graph_transforms/pipeline.h"
#include "training/files/checkpoint.h"
#include "core/gradient/training_mode.h"
#include "core/gradient/yield_insertion.h"

#include "training/step/parameters.h"
#include "training/step/trainable.h"

namespace caesura {

// State that a module's runs share, and that a run needs if it outlives the module.
struct ForwardRun::Program {
  std::unique_ptr<caesura::Program> graph;
  CpuFallbackReport cpu_fallback;
  ModuleGraph cut;                      // its yield is not to be used: passes may have replaced it
  std::vector<std::string> outputs;     // the model's
  std::vector<std::string> parameters;  // trained, then running statistics
  std::vector<int>
      statistics;  // indices of the parameters that the yield hands out after the outputs
};

// --- a run ---

ForwardRun::ForwardRun() = default;
ForwardRun::ForwardRun(ForwardRun&&) noexcept = default;
ForwardRun::~ForwardRun() = default;
bool ForwardRun::pending() const { return run_ != nullptr && *run_; }

ForwardRun& ForwardRun::operator=(ForwardRun&& other) noexcept {
  if (this == &other) return *this;
  run_ = std::move(other.run_);  // first: the run before it lets go of what it reads
  outputs = std::move(other.outputs);
  program_ = std::move(other.program_);
  parameters_ = std::move(other.parameters_);
  observers_ = std::move(other.observers_);
  return *this;
}

// One gradient for each output, as the yield takes them: some for none, some outputs twice.
Result<std::vector<RuntimeValue>> ForwardRun::ByYield(
    std::vector<RuntimeValue> output_gradients) const {
  const std::vector<std::string>& names = program_->outputs;
  if (output_gradients.size() != names.size()) {
    return InvalidArgument("the module has " + std::to_string(names.size()) + " outputs, got " +
                           std::to_string(output_gradients.size()) + " gradients");
  }
  std::vector<RuntimeValue> values;
  std::vector<bool> taken(names.size(), false);
  for (int output : program_->cut.gradient_of) {
    values.push_back(output_gradients[output]);
    taken[output] = true;
  }
  for (size_t i = 0; i < names.size(); ++i) {
    if (taken[i] || !output_gradients[i].has_value()) continue;
    return InvalidArgument("output '" + names[i] +
                           "' depends on nothing that is differentiated and takes no gradient");
  }
  return values;
}

Result<std::vector<RuntimeValue>> ForwardRun::Backward(std::vector<RuntimeValue> output_gradients,
                                                       bool keep) try {
  if (!pending()) {
    return InvalidArgument(
        "the run is over: its backward was done already, and without `keep` there is only one");
  }
  ASSIGN_OR_RETURN(std::vector<RuntimeValue> values, ByYield(std::move(output_gradients)));
  RunResult result =
      run_->GoOn({.values = std::move(values), .observers = observers_, .keep = keep});
  if (!pending()) parameters_.reset();
  RETURN_IF_ERROR(result.status);
  return std::move(result.values);
} catch (const std::bad_alloc&) {
  return OutOfMemory("memory ran out in a backward run");
}

Status ForwardRun::Save(const std::string& path) const try {
  if (!pending()) return InvalidArgument("the run is over: there is nothing to save");
  Checkpoint checkpoint;
  for (int i = 0; i < parameters_->size(); ++i)
    checkpoint.parameters[parameters_->name(i)] = parameters_->tensor(i);
  ASSIGN_OR_RETURN(checkpoint.step, run_->Capture());
  const ExecutionPlan& plan = run_->state().plan();
  for (RuntimeValue output : outputs) {  // a file takes what the host can read
    if (output.is_tensor()) {
      ASSIGN_OR_RETURN(output, ToHost(output.tensor(), plan.providers()));
    }
    checkpoint.step->handed_out.push_back(std::move(output));
  }
  checkpoint.step->handed_out.resize(plan.yields()[0].outputs.size());
  return SaveCheckpoint(checkpoint, path);
} catch (const std::bad_alloc&) {
  return OutOfMemory("memory ran out while '" + path + "' was saved");
}

// --- the module ---

SplitModule::SplitModule() = default;
SplitModule::~SplitModule() = default;

Result<std::unique_ptr<SplitModule>> SplitModule::Create(Model model,
                                                         SplitModuleOptions options) try {
  std::unique_ptr<SplitModule> module(new SplitModule);
  module->fallback_ = TrainingFallback(std::move(options.providers), options.fallback);
  RETURN_IF_ERROR(module->Prepare(std::move(model), options));
  return module;
} catch (const std::bad_alloc&) {
  return OutOfMemory("memory ran out while a module was made");
}

Status SplitModule::Prepare(Model model, const SplitModuleOptions& options) {
  seed_ = options.seed;
  shares_parameters_ = options.share_parameters;
  ASSIGN_OR_RETURN(const std::shared_ptr<OpBinding> ops, OpBinding::Create(options.custom_ops));
  RETURN_IF_ERROR(ops->Declare(model));  // gradients go through ops of the user's, too
  ASSIGN_OR_RETURN(const std::vector<std::string> trainable, TrainableNames(model, options));
  auto program = std::make_shared<ForwardRun::Program>();
  for (const Value* output : model.graph->outputs()) program->outputs.push_back(output->name());
  RETURN_IF_ERROR(ops->Attach(model, trainable));
  RETURN_IF_ERROR(RunForwardPasses(model, trainable, options.disabled_passes));
  program->parameters = trainable;
  for (std::string& name : StatisticNames(*model.graph))
    program->parameters.push_back(std::move(name));
  if (!shares_parameters_) {
    RETURN_IF_ERROR(CopyInitializers(program->parameters, {model.graph.get()}));
  }

  Model evaluation = model.Clone();
  RETURN_IF_ERROR(SwitchToEvaluation(*evaluation.graph));
  std::vector<StatisticUpdate> updates;
  if (options.training) {
    ASSIGN_OR_RETURN(updates, SwitchToTraining(*model.graph, {.unbiased_statistics =
                                                                  options.unbiased_statistics}));
  }
  parameters_ = std::make_shared<ParameterSet>();
  AddParameters(*model.graph, program->parameters, parameters_.get());
  ModuleGraphOptions cut{trainable, options.inputs};
  for (const StatisticUpdate& update : updates) {
    program->statistics.push_back(parameters_->Find(update.target->name()));
    cut.extra.push_back(update.value);
  }
  ASSIGN_OR_RETURN(program->cut, BuildModuleGraph(*model.graph, cut));
  RETURN_IF_ERROR(ops->MakeInstances(*model.graph));
  PreparedGraphOptions made{
      .parameters = program->parameters, .ops = ops, .disabled_passes = options.disabled_passes};
  made.plan.threads = options.threads;
  made.plan.cache_values = !shares_parameters_;
  if (options.gradients_on_device)
    made.plan.fetch_devices.assign(model.graph->outputs().size(), std::nullopt);
  const std::unordered_set<std::string> changing(program->parameters.begin(),
                                                 program->parameters.end());
  const auto report = std::make_shared<CpuFallbackReport>();
  made.passes = WithPlacement(
      [changing](const ProviderList& providers) { return StepPasses(providers, changing); },
      {.device_inputs = options.device_inputs, .report = report});
  ASSIGN_OR_RETURN(program->graph, Program::Create(std::move(model), fallback_, made));
  program->cpu_fallback = *report;
  made.plan.fetch_devices.clear();
  if (options.predictions_on_device)
    made.plan.fetch_devices.assign(evaluation.graph->outputs().size(), std::nullopt);
  made.passes = WithPlacement(
      [changing](const ProviderList& providers) { return FusionPasses(providers, changing); },
      {.device_inputs = options.device_inputs});
  ASSIGN_OR_RETURN(predict_, Program::Create(std::move(evaluation), fallback_, std::move(made)));
  program_ = std::move(program);
  return {};
}

Result<ForwardRun> SplitModule::Forward(const NamedValues& feeds,
                                        std::vector<ExecutionObserver*> observers) try {
  ASSIGN_OR_RETURN(std::vector<RuntimeValue> bound,
                   BindFeeds(program_->graph->graph(), feeds, FeedCheck::kDType));
  ForwardRun run;
  run.program_ = program_;
  run.parameters_ = Parameters();
  RunOptions options;
  options.parameters = run.parameters_.get();
  options.seed = seed_;
  options.step = forwards_++;
  options.observers = observers;
  RunResult result = program_->graph->Run({.feeds = std::move(bound),
                                           .options = std::move(options),
                                           .at_yield = AtYield::kWaitAndRepeat});
  RETURN_IF_ERROR(result.status);
  run.run_ = std::make_unique<WaitingRun>(std::move(result.waiting));
  run.observers_ = std::move(observers);
  run.outputs = std::move(result.values);
  std::vector<std::pair<int, Tensor>> statistics;
  for (size_t i = 0; i < program_->statistics.size(); ++i) {
    statistics.emplace_back(program_->statistics[i],
                            run.outputs[program_->outputs.size() + i].tensor());
  }
  run.outputs.resize(program_->outputs.size());
  if (shares_parameters_) RETURN_IF_ERROR(Overwrite(statistics));
  else Replace(std::move(statistics));
  return run;
} catch (const std::bad_alloc&) {
  return OutOfMemory("memory ran out in a forward run");
}

Result<ForwardRun> SplitModule::LoadRun(const std::string& path) const try {
  ASSIGN_OR_RETURN(const Checkpoint checkpoint, RestoreCheckpoint(path));
  if (!checkpoint.step || checkpoint.step->yield_index < 0)
    return InvalidModel("'" + path + "' holds no run that waits for its backward");
  ForwardRun run;
  run.program_ = program_;
  run.parameters_ = std::make_shared<ParameterSet>(*Parameters());
  for (int i = 0; i < run.parameters_->size(); ++i) {
    const auto found = checkpoint.parameters.find(run.parameters_->name(i));
    if (found == checkpoint.parameters.end()) {
      return InvalidArgument("'" + path + "' has no parameter '" + run.parameters_->name(i) + "'");
    }
    RETURN_IF_ERROR(FindReplaceable(*run.parameters_, found->first, found->second).status());
    run.parameters_->Replace(i, found->second);
  }
  RunOptions options;
  options.parameters = run.parameters_.get();
  ASSIGN_OR_RETURN(WaitingRun waiting,
                   program_->graph->Restore(*checkpoint.step, std::move(options), Undo::kNever));
  run.run_ = std::make_unique<WaitingRun>(std::move(waiting));
  run.outputs = run.run_->state().TakeYielded();
  run.outputs.resize(program_->outputs.size());
  return run;
} catch (const std::bad_alloc&) {
  return OutOfMemory("memory ran out while '" + path + "' was loaded");
}

Result<std::vector<RuntimeValue>> SplitModule::Predict(const NamedValues& feeds) try {
  ASSIGN_OR_RETURN(std::vector<RuntimeValue> bound,
                   BindFeeds(predict_->graph(), feeds, FeedCheck::kDType));
  const std::shared_ptr<ParameterSet> parameters = Parameters();
  RunOptions options;
  options.parameters = parameters.get();
  options.seed = seed_;
  RunResult result = predict_->Run({.feeds = std::move(bound), .options = std::move(options)});
  RETURN_IF_ERROR(result.status);
  return std::move(result.values);
} catch (const std::bad_alloc&) {
  return OutOfMemory("memory ran out in a prediction");
}

const std::vector<std::string>& SplitModule::gradient_names() const {
  return program_->cut.differentiated;
}
const std::vector<std::string>& SplitModule::unreachable() const {
  return program_->cut.unreachable;
}
const CpuFallbackReport& SplitModule::cpu_fallback() const { return program_->cpu_fallback; }
const std::vector<std::string>& SplitModule::output_names() const { return program_->outputs; }
std::vector<int> SplitModule::differentiable_outputs() const {
  const std::set<int> indices(program_->cut.gradient_of.begin(), program_->cut.gradient_of.end());
  return {indices.begin(), indices.end()};
}
std::vector<std::string> SplitModule::ParameterNames() const { return program_->parameters; }

// --- parameters ---

std::shared_ptr<ParameterSet> SplitModule::Parameters() const {
  std::lock_guard<std::mutex> lock(mutex_);
  return parameters_;
}

Result<Tensor> SplitModule::Parameter(const std::string& name) const {
  const std::shared_ptr<ParameterSet> parameters = Parameters();
  const int i = parameters->Find(name);
  if (i < 0) return NotFound("there is no parameter '" + name + "'");
  return parameters->tensor(i);
}

Status SplitModule::SetParameters(const std::map<std::string, Tensor>& values) try {
  const std::shared_ptr<ParameterSet> present = Parameters();
  std::vector<std::pair<int, Tensor>> copies;
  for (const auto& [name, value] : values) {
    ASSIGN_OR_RETURN(const int i, FindReplaceable(*present, name, value));
    ASSIGN_OR_RETURN(Tensor copy, value.Clone());
    copies.emplace_back(i, std::move(copy));
  }
  Replace(std::move(copies));
  return {};
} catch (const std::bad_alloc&) {
  return OutOfMemory("memory ran out while parameters were copied");
}

// The entries share their tensors with the old set; only handles are copied.
void SplitModule::Replace(std::vector<std::pair<int, Tensor>> values) {
  if (values.empty()) return;
  std::lock_guard<std::mutex> lock(mutex_);
  auto next = std::make_shared<ParameterSet>(*parameters_);
  for (auto& [i, value] : values) next->Replace(i, std::move(value));
  parameters_ = std::move(next);
}

Status SplitModule::Overwrite(const std::vector<std::pair<int, Tensor>>& values) {
  const ProviderList providers = fallback_->providers();
  std::lock_guard<std::mutex> lock(mutex_);
  for (const auto& [i, value] : values) {
    const Tensor& target = parameters_->tensor(i);
    const Device device = target.device();
    if (device != value.device()) {
      RETURN_IF_ERROR(CopyElements(value, target, providers));
    } else if (device.is_host()) {
      CopyElements(value.dtype(), value.raw(), target.raw(), value.elements());
    } else {
      const auto serves = [&](const auto& provider) { return provider->device() == device; };
      const auto provider = std::find_if(providers.begin(), providers.end(), serves);
      if (provider == providers.end()) return Internal("no provider serves " + device.ToString());
      RETURN_IF_ERROR(
          (*provider)->Copy(CopyKind::kWithin, target.raw(), value.raw(), value.bytes()));
    }
  }
  return {};
}

}  // namespace caesura
