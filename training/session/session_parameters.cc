// SPDX-License-Identifier: Apache-2.0
#include "training/session/session_parameters.h"

#include <algorithm>
#include <cassert>
#include <new>
#include <utility>

#include "core/base/status_macros.h"
#include "core/execute/parameter_set.h"
#include "core/gradient/training_mode.h"
#include "core/providers/tensor_copy.h"
#include "core/runtime/provider_fallback.h"
#include "core/graph/pass.h"
#include "graph_transforms/simplify/dead_node_elimination.h"
#include "training/files/checkpoint.h"
#include "training/step/parameter_placement.h"
#include "training/step/parameters.h"
#include "training/step/step_program.h"

namespace caesura {
namespace {

// Leaves these outputs, and what they need.
Status KeepOutputs(const std::vector<std::string>& names, Model& model) {
  Graph& graph = *model.graph;
  ASSIGN_OR_RETURN(const std::vector<Value*> outputs, FindOutputs(graph, names));
  graph.ClearOutputs();
  for (Value* output : outputs) graph.AddOutput(output);
  RETURN_IF_ERROR(RunPasses({MakeDeadNodeEliminationPass()}, model, {}).status());
  const std::vector<Value*> inputs = graph.inputs();
  for (Value* input : inputs) {
    if (input->uses().empty() && !graph.IsGraphOutput(input)) graph.RemoveInput(input);
  }
  graph.RemoveUnusedValues();
  return {};
}

// A line that says why a checkpoint's tensor (null: it has none) cannot become the session's `own`;
// empty where it can.
std::string Misfit(const std::string& name, const Tensor* found, const Tensor& own) {
  if (found == nullptr) return "\n  '" + name + "' is missing";
  if (found->dtype() == own.dtype() && found->shape() == own.shape()) return {};
  return "\n  '" + name + "' is " + DTypeName(found->dtype()) + found->shape().ToString() +
         ", the session has " + DTypeName(own.dtype()) + own.shape().ToString();
}

}  // namespace

SessionParameters::SessionParameters(Model model, std::vector<std::string> trainable,
                                     std::shared_ptr<const ProviderFallback> providers, bool share)
    : model_(std::move(model)),
      trainable_(std::move(trainable)),
      providers_(std::move(providers)),
      shared_(share),
      bound_(share),
      set_(std::make_unique<ParameterSet>()) {}

SessionParameters::~SessionParameters() = default;

bool SessionParameters::IsAccumulator(int i) const {
  return set_->name(i).rfind("accumulator.", 0) == 0;
}

Status SessionParameters::CheckNoStepWaits() const {
  return step_waits_ ? InvalidArgument("a step waits; ResumeStep or DropStep first") : Status();
}

std::vector<std::string> SessionParameters::Names() const {
  std::vector<std::string> out;
  for (int i = 0; i < trained_ + statistics_; ++i) out.push_back(set_->name(i));
  return out;
}

std::vector<std::string> SessionParameters::FrozenNames() const {
  std::vector<std::string> out;
  for (const Value* value : model_.graph->Values()) {
    const Tensor* tensor = model_.graph->Initializer(value);
    const bool frozen =
        tensor != nullptr && IsDifferentiable(tensor->dtype()) && set_->Find(value->name()) < 0;
    if (frozen) out.push_back(value->name());
  }
  return out;
}

Status SessionParameters::CheckNotDivided(const std::string& name) const {
  for (const ParameterShard& shard : shards_) {
    for (const std::string& state : shard.states) {
      if (name.rfind(state + ".", 0) != 0) continue;
      const std::string of = name.substr(state.size() + 1);
      if (std::count(shard.members.begin(), shard.members.end(), of) == 0) continue;
      return Unsupported("'" + name + "' is divided among " + std::to_string(shard.layout.ranks()) +
                         " ranks: Save gathers it, and Restore takes each rank's part");
    }
  }
  return {};
}

Result<Tensor> SessionParameters::Get(const std::string& name) const {
  RETURN_IF_ERROR(CheckNotDivided(name));
  const int i = set_->Find(name);
  if (i >= 0) return ToHost(set_->tensor(i), providers_->providers());
  const Tensor* frozen = model_.graph->Initializer(model_.graph->FindValue(name));
  return frozen != nullptr ? Result<Tensor>(*frozen)
                           : NotFound("the session has no parameter '" + name + "'");
}

Status SessionParameters::Set(const std::string& name, const Tensor& value) {
  RETURN_IF_ERROR(CheckNoStepWaits());
  if (Value* frozen = model_.graph->FindValue(name);
      set_->Find(name) < 0 && model_.graph->Initializer(frozen)) {
    const Tensor own = *model_.graph->Initializer(frozen);
    RETURN_IF_ERROR(CheckReplaceable(name, own, value));
    ASSIGN_OR_RETURN(Tensor copy, value.Clone());
    replaced_.emplace(name, own);
    model_.graph->SetInitializer(frozen, std::move(copy));
    ++version_;
    return {};
  }
  RETURN_IF_ERROR(CheckNotDivided(name));
  ASSIGN_OR_RETURN(const int i, FindReplaceable(*set_, name, value));
  RETURN_IF_ERROR(CopyElements(value, set_->tensor(i), providers_->providers()));
  set_->Touch(i);
  return {};
}

Status SessionParameters::SetOwn(const std::string& name, const Tensor& value) {
  RETURN_IF_ERROR(Set(name, value));
  replaced_.erase(name);
  return {};
}

Status SessionParameters::Bind(const std::string& name, Tensor value) {
  RETURN_IF_ERROR(CheckNoStepWaits());
  RETURN_IF_ERROR(CheckNotDivided(name));
  ASSIGN_OR_RETURN(const int i, FindReplaceable(*set_, name, value));
  const Device device = set_->tensor(i).device();
  if (value.device() != device && !value.device().is_host()) {
    return InvalidArgument("parameter '" + name + "' is on " + value.device().ToString() +
                           ", and what updates it has kernels on " + device.ToString() + " only");
  }
  if (value.device() != device) {  // it is updated where its owner has it
    RETURN_IF_ERROR(BringToHost(providers_->providers()));
    ++version_;
  }
  set_->Replace(i, std::move(value));
  bound_ = true;
  return {};
}

Result<Model> SessionParameters::TrainedModel(const std::vector<std::string>& outputs) const try {
  Model model = model_.Clone();
  RETURN_IF_ERROR(SwitchToEvaluation(*model.graph));
  for (int i = 0; i < trained_ + statistics_; ++i) {
    ASSIGN_OR_RETURN(Tensor copy, HostCopyOf(set_->tensor(i), providers_->providers()));
    model.graph->SetInitializer(model.graph->FindValue(set_->name(i)), std::move(copy));
  }
  if (!outputs.empty()) RETURN_IF_ERROR(KeepOutputs(outputs, model));
  return model;
} catch (const std::bad_alloc&) {
  return OutOfMemory("memory ran out while the trained model was copied");
}

Status SessionParameters::MakeCopies(Graph& graph) {
  if (set_->size() > 0 || shared_) return {};
  for (const auto& names : {trainable_, StatisticNames(graph)})
    RETURN_IF_ERROR(CopyInitializers(names, {&graph, model_.graph.get()}));
  return {};
}

Status SessionParameters::Share(const StepProgram& program) {
  if (set_->size() == 0) {
    shards_ = program.shards;
    trained_ = program.trained;
    statistics_ = program.statistics;
    if (!shared_) PlaceParameters(program, providers_->providers());
    AddParameters(*program.graph, program.parameters, set_.get());
    return {};
  }
  const int count = static_cast<int>(program.parameters.size());
  bool fits = count <= set_->size() && (program.shards.empty() || program.shards == shards_);
  for (int i = 0; i < count && fits; ++i) fits = program.parameters[i] == set_->name(i);
  if (!fits) return Internal("the parameters of two programs of a session differ");
  ShareParameters(*set_, count, program.graph.get());
  return {};
}

ParameterSet& SessionParameters::ForRun() {
  if (bound_) set_->TouchAll();  // nobody tells what their owner wrote meanwhile
  return *set_;
}

Status SessionParameters::BringToHost(const ProviderList& providers) {
  return caesura::BringToHost(set_.get(), providers);
}

int SessionParameters::whole() const {
  int parts = 0;
  for (const ParameterShard& shard : shards_) {
    parts += static_cast<int>(shard.states.size());
    parts += set_->Find("accumulator." + shard.name) >= 0 ? 1 : 0;
  }
  return set_->size() - parts;
}

const Tensor* SessionParameters::Find(const Checkpoint& from, int i) const {
  const auto& part = i < trained_ + statistics_ ? from.parameters : from.optimizer_state;
  const auto found = part.find(set_->name(i));
  return found == part.end() ? nullptr : &found->second;
}

Status SessionParameters::Save(Checkpoint& to, bool has_sums) const {
  for (int i = 0; i < whole(); ++i) {
    if (!has_sums && IsAccumulator(i)) continue;
    auto& part = i < trained_ + statistics_ ? to.parameters : to.optimizer_state;
    ASSIGN_OR_RETURN(part[set_->name(i)], ToHost(set_->tensor(i), providers_->providers()));
  }
  for (const auto& [name, own] : replaced_) {
    ASSIGN_OR_RETURN(to.parameters[name], Get(name));
  }
  return {};
}

std::string SessionParameters::Misfits(const Checkpoint& from, bool has_sums) const {
  std::string wrong;
  for (int i = 0; i < whole(); ++i) {
    if (!has_sums && IsAccumulator(i)) continue;
    wrong += Misfit(set_->name(i), Find(from, i), set_->tensor(i));
  }
  for (const auto& [name, value] : from.parameters) {
    if (set_->Find(name) >= 0) continue;
    const Result<Tensor> own = Get(name);
    if (!own.ok()) continue;
    const Status fits = CheckReplaceable(name, *own, value);
    if (!fits.ok()) wrong += "\n  " + fits.message();
  }
  return wrong;
}

Status SessionParameters::Restore(const Checkpoint& from, bool has_sums) {
  assert(Misfits(from, has_sums).empty());
  // The values of frozen parameters; where nothing is said, their own.
  std::map<std::string, Tensor> frozen = replaced_;
  for (const auto& [name, value] : from.parameters) {
    if (set_->Find(name) < 0 && Get(name).ok()) frozen[name] = value;
  }
  const ProviderList providers = providers_->providers();
  for (int i = 0; i < whole(); ++i) {
    if (!has_sums && IsAccumulator(i)) continue;
    RETURN_IF_ERROR(CopyElements(*Find(from, i), set_->tensor(i), providers));
  }
  set_->TouchAll();
  for (const auto& [name, value] : frozen) {
    const bool own = !from.parameters.count(name);
    RETURN_IF_ERROR(Set(name, value));
    if (own) replaced_.erase(name);
  }
  return {};
}

}  // namespace caesura
