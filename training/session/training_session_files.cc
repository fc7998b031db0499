// SPDX-License-Identifier: Apache-2.0
// The files that a training session writes and reads: checkpoints and trained models.
#include <new>
#include <utility>

#include "core/base/status_macros.h"
#include "core/onnx/model_writer.h"
#include "core/providers/tensor_copy.h"
#include "graph_transforms/simplify/dead_node_elimination.h"
#include "core/gradient/training_mode.h"
#include "training/step/parameters.h"
#include "training/session/training_session.h"

namespace caesura {
namespace {

// Properties of ours; a caller's own are kept apart by a prefix.
constexpr char kUpdates[] = "session.updates";
constexpr char kMicroSteps[] = "session.micro_steps";
constexpr char kLearningRate[] = "session.learning_rate";
constexpr char kAccumulated[] = "session.accumulated";  // where the caller decides when to update
constexpr char kSeed[] = "session.seed";
constexpr char kLossScale[] = "session.loss_scale";  // these two where the loss is scaled
constexpr char kGoodSteps[] = "session.good_steps";
constexpr char kLossSum[] = "session.loss_sum";  // these two between the micro-steps of an update
constexpr char kLosses[] = "session.losses";
constexpr char kLogicalShards[] = "session.logical_shards";    // where sums are ordered
constexpr char kWaitingUpdates[] = "session.waiting_updates";  // whether the step that waits does
constexpr char kCallerPrefix[] = "caller.";

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

// The progress of training; zeros where a checkpoint has none of it.
struct Progress {
  int64_t updates = 0, micro_steps = 0, accumulated = 0, seed = 0;
  double learning_rate = 0;
  double loss_scale = 0;
  int64_t good_steps = 0;
  double loss_sum = 0;
  int64_t losses = 0;
  int64_t logical_shards = 0;
};

Result<Progress> ReadProgress(const Checkpoint& checkpoint, const StepOptions& step) {
  Progress out;
  ASSIGN_OR_RETURN(out.updates, checkpoint.Get<int64_t>(kUpdates));
  ASSIGN_OR_RETURN(out.micro_steps, checkpoint.Get<int64_t>(kMicroSteps));
  ASSIGN_OR_RETURN(out.learning_rate, checkpoint.Get<double>(kLearningRate));
  ASSIGN_OR_RETURN(out.seed, checkpoint.Get<int64_t>(kSeed));
  if (step.accumulation_steps == 0) {
    ASSIGN_OR_RETURN(out.accumulated, checkpoint.Get<int64_t>(kAccumulated));
  }
  if (step.scales_loss()) {
    ASSIGN_OR_RETURN(out.loss_scale, checkpoint.Get<double>(kLossScale));
    ASSIGN_OR_RETURN(out.good_steps, checkpoint.Get<int64_t>(kGoodSteps));
  }
  if (checkpoint.properties.count(kLosses)) {
    ASSIGN_OR_RETURN(out.loss_sum, checkpoint.Get<double>(kLossSum));
    ASSIGN_OR_RETURN(out.losses, checkpoint.Get<int64_t>(kLosses));
  }
  if (checkpoint.properties.count(kLogicalShards)) {
    ASSIGN_OR_RETURN(out.logical_shards, checkpoint.Get<int64_t>(kLogicalShards));
  }
  return out;
}

// A line that says why a checkpoint's tensor (null: it has none) cannot become the session's `own`;
// empty where it can.
std::string Misfit(const std::string& name, const Tensor* found, const Tensor& own) {
  if (found == nullptr) return "\n  '" + name + "' is missing";
  if (found->dtype() == own.dtype() && found->shape() == own.shape()) return {};
  return "\n  '" + name + "' is " + DTypeName(found->dtype()) + found->shape().ToString() +
         ", the session has " + DTypeName(own.dtype()) + own.shape().ToString();
}

std::map<std::string, Checkpoint::Property> CallersProperties(const Checkpoint& checkpoint) {
  std::map<std::string, Checkpoint::Property> out;
  const std::string prefix = kCallerPrefix;
  for (const auto& [name, property] : checkpoint.properties) {
    if (name.rfind(prefix, 0) == 0) out[name.substr(prefix.size())] = property;
  }
  return out;
}

}  // namespace

Status TrainingSession::Save(const std::string& path,
                             std::map<std::string, Checkpoint::Property> properties) const try {
  if (parameters_inconsistent_)
    return InvalidArgument(
        "a lost step left parameters half updated: there is nothing worth saving");
  if (ranks() > 1 && !options_.step.rank_parts.empty()) {
    return Unsupported("rank_parts: '" + path +
                       "' would hold this rank's part of some parameters; save each rank's "
                       "Parameter() in a file of its own");
  }
  if (ordered() && ranks() > 1 && accumulated() > 0) {
    return Unsupported("logical_shards: '" + path +
                       "' is to be saved after an update; now each rank has gradients of its own");
  }
  Checkpoint checkpoint;
  for (int i = 0; i < WholeParameters(); ++i) {
    if (ordered() && accumulated() == 0 && IsAccumulator(i)) continue;  // nothing is in it
    auto& part = i < trained_ + statistics_ ? checkpoint.parameters : checkpoint.optimizer_state;
    ASSIGN_OR_RETURN(part[parameters_.name(i)],
                     ToHost(parameters_.tensor(i), fallback_->providers()));
  }
  for (const auto& [name, own] : replaced_) {
    ASSIGN_OR_RETURN(checkpoint.parameters[name], Parameter(name));
  }
  for (auto& [name, property] : properties)
    checkpoint.properties[kCallerPrefix + name] = std::move(property);
  checkpoint.properties[kUpdates] = updates_;
  checkpoint.properties[kMicroSteps] = micro_steps_;
  if (ordered()) {  // of all ranks
    const int64_t own = options_.step.accumulation_steps;
    checkpoint.properties[kMicroSteps] =
        micro_steps_ / own * options_.logical_shards + micro_steps_ % own;
    checkpoint.properties[kLogicalShards] = int64_t{options_.logical_shards};
  }
  if (options_.step.accumulation_steps == 0) checkpoint.properties[kAccumulated] = accumulated_;
  checkpoint.properties[kLearningRate] = learning_rate_;
  checkpoint.properties[kSeed] = static_cast<int64_t>(options_.seed);
  if (options_.step.scales_loss()) {
    checkpoint.properties[kLossScale] = static_cast<double>(scaler_.scale());
    checkpoint.properties[kGoodSteps] = scaler_.good_steps();
  }
  if (losses_ > 0) {
    checkpoint.properties[kLossSum] = loss_sum_;
    checkpoint.properties[kLosses] = losses_;
  }
  if (suspended()) {
    checkpoint.properties[kWaitingUpdates] = int64_t{waiting_.updates};
    ASSIGN_OR_RETURN(checkpoint.step, waiting_.run->Capture());
  }
  return sharded() ? SaveFromAllRanks(std::move(checkpoint), path)
                   : SaveCheckpoint(checkpoint, path);
} catch (const std::bad_alloc&) {
  return OutOfMemory("memory ran out while '" + path + "' was saved");
}

// The step on this session's programs, waiting.
Result<std::unique_ptr<SuspendedRun>> TrainingSession::TakeUp(const StateSnapshot& step,
                                                              bool updates) {
  RETURN_IF_ERROR(Refresh());
  return (updates ? *update_ : *accumulate_).Restore(step, MakeRun(0), UndoOfSteps());
}

Result<std::map<std::string, Checkpoint::Property>> TrainingSession::Restore(
    const std::string& path) try {
  ASSIGN_OR_RETURN(const Checkpoint checkpoint, RestoreCheckpoint(path));
  ASSIGN_OR_RETURN(Progress progress, ReadProgress(checkpoint, options_.step));
  // Everything is compared before anything is written.
  std::vector<const Tensor*> found;
  std::string wrong;
  bool has_sums = true;
  if (progress.logical_shards != options_.logical_shards) {
    wrong += "\n  it is of a run with logical_shards = " + std::to_string(progress.logical_shards) +
             ", the session has " + std::to_string(options_.logical_shards);
  } else if (ordered()) {
    const int64_t left = progress.micro_steps % progress.logical_shards;
    has_sums = left != 0;
    if (has_sums && ranks() > 1)
      wrong += "\n  it has the accumulated gradients of one rank, which several cannot divide";
    progress.micro_steps =
        progress.micro_steps / progress.logical_shards * options_.step.accumulation_steps + left;
  }
  for (int i = 0; i < WholeParameters(); ++i) {
    if (!has_sums && IsAccumulator(i)) {
      found.push_back(nullptr);  // stays as it is
      continue;
    }
    const auto& part =
        i < trained_ + statistics_ ? checkpoint.parameters : checkpoint.optimizer_state;
    const auto it = part.find(parameters_.name(i));
    found.push_back(it == part.end() ? nullptr : &it->second);
    wrong += Misfit(parameters_.name(i), found.back(), parameters_.tensor(i));
  }
  wrong += StateMisfits(checkpoint);
  if (progress.losses > 0 && shards_accumulators())
    wrong += "\n  it has the accumulated gradients of one rank, which shard = 2 cannot divide";
  std::map<std::string, Tensor> frozen =
      replaced_;  // what the frozen ones become; where nothing is said, their own values
  for (const auto& [name, value] : checkpoint.parameters) {
    if (parameters_.Find(name) >= 0) continue;
    const Result<Tensor> own = Parameter(name);
    if (!own.ok()) continue;
    const Status fits = CheckReplaceable(name, *own, value);
    if (!fits.ok()) wrong += "\n  " + fits.message();
    frozen[name] = value;
  }
  if (!wrong.empty())
    return InvalidArgument("checkpoint '" + path + "' does not fit the model:" + wrong);
  WaitingStep waiting;
  if (checkpoint.step) {
    ASSIGN_OR_RETURN(const int64_t is_update, checkpoint.Get<int64_t>(kWaitingUpdates));
    waiting.updates = is_update != 0;
    RETURN_IF_ERROR(TakeUp(*checkpoint.step, waiting.updates).status());  // whether it fits
  }
  const ProviderList providers = fallback_->providers();
  std::map<std::string, Checkpoint::Property> properties = CallersProperties(checkpoint);
  std::vector<std::string> mixed = ParameterNames();
  waiting_ = {};
  parameters_inconsistent_ = true;  // until all is written: memory or a device may fail on the way
  inconsistent_ = std::move(mixed);
  for (int i = 0; i < WholeParameters(); ++i) {
    if (found[i] == nullptr) continue;
    RETURN_IF_ERROR(CopyElements(*found[i], parameters_.tensor(i), providers));
  }
  TakeState(checkpoint);
  parameters_.TouchAll();
  for (const auto& [name, value] : frozen) {
    const bool own = !checkpoint.parameters.count(name);
    RETURN_IF_ERROR(SetParameter(name, value));
    if (own) replaced_.erase(name);
  }
  updates_ = progress.updates;
  micro_steps_ = progress.micro_steps;
  accumulated_ = progress.accumulated;
  learning_rate_ = progress.learning_rate;
  options_.seed = static_cast<uint64_t>(progress.seed);
  if (options_.step.scales_loss())
    scaler_.Restore(static_cast<float>(progress.loss_scale), progress.good_steps);
  curves_.Clear();  // they are of another run
  loss_sum_ = progress.loss_sum;
  losses_ = progress.losses;
  if (checkpoint.step) {  // with the parameters that are there now
    ASSIGN_OR_RETURN(waiting.run, TakeUp(*checkpoint.step, waiting.updates));
    waiting.differences = DescribeDifferences(*checkpoint.step, waiting.run->started.state->plan());
  }
  waiting_ = std::move(waiting);
  parameters_inconsistent_ = false;
  inconsistent_.clear();
  return properties;
} catch (const std::bad_alloc&) {
  return OutOfMemory("memory ran out while '" + path + "' was restored");
}

Status TrainingSession::ExportModel(const std::string& path,
                                    const std::vector<std::string>& outputs) const {
  ASSIGN_OR_RETURN(const Model model, TrainedModel(outputs));
  return WriteModel(model, path);
}

Result<Model> TrainingSession::TrainedModel(const std::vector<std::string>& outputs) const try {
  Model model = original_.Clone();
  RETURN_IF_ERROR(SwitchToEvaluation(*model.graph));
  for (const std::string& name : ParameterNames()) {
    ASSIGN_OR_RETURN(Tensor copy, HostCopyOf(parameters_.tensor(parameters_.Find(name)),
                                             fallback_->providers()));
    model.graph->SetInitializer(model.graph->FindValue(name), std::move(copy));
  }
  if (!outputs.empty()) RETURN_IF_ERROR(KeepOutputs(outputs, model));
  return model;
} catch (const std::bad_alloc&) {
  return OutOfMemory("memory ran out while the trained model was copied");
}

}  // namespace caesura
