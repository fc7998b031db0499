// SPDX-License-Identifier: Apache-2.0
#include "training/session/training_session.h"

#include <new>
#include <utility>

#include "core/base/names.h"
#include "core/base/status_macros.h"
#include "core/custom_ops/op_binding.h"
#include "core/onnx/model_writer.h"
#include "core/runtime/provider_fallback.h"
#include "training/session/rank_group.h"
#include "training/session/session_files.h"
#include "training/step/parameters.h"
#include "training/step/trainable.h"

namespace caesura {
namespace {

Status CheckOptions(const TrainingOptions& options) {
  RETURN_IF_ERROR(options.schedule.Check());
  RETURN_IF_ERROR(options.failures.Check());
  const StepOptions& step = options.step;
  if (step.accumulation_steps < 0) {
    return InvalidArgument("accumulation_steps: expected 0 (the caller decides) or more, got " +
                           std::to_string(step.accumulation_steps));
  }
  const DTypeSet precisions = {DType::kFloat32, DType::kBFloat16, DType::kFloat16};
  if (!precisions.Contains(step.precision)) {
    return InvalidArgument("precision: expected one of " + precisions.ToString() + ", got " +
                           DTypeName(step.precision));
  }
  return step.loss_scaling.Check();
}

// The progress of a run that begins.
TrainingProgress ProgressOf(const TrainingOptions& options, const RankSetup& setup) {
  TrainingProgress out;
  out.schedule = options.schedule;
  out.micro_steps_to_update = setup.MicroSteps(options.step.accumulation_steps);
  out.logical_shards = setup.logical_shards;
  out.scales_loss = options.step.scales_loss();
  out.loss_is_mean = setup.is_ordered() || options.step.mean_over == MeanOver::kTokens;
  out.base_rate = LearningRate(options.step.optimizer);
  out.seed = options.seed;
  out.scaler = GradScaler(options.step.loss_scaling);
  return out;
}

}  // namespace

TrainingSession::TrainingSession(TrainingOptions options) : options_(std::move(options)) {}

TrainingSession::~TrainingSession() = default;

Result<std::unique_ptr<TrainingSession>> TrainingSession::Create(Model model,
                                                                 TrainingOptions options) try {
  std::unique_ptr<TrainingSession> session(new TrainingSession(std::move(options)));
  const Status prepared = session->Prepare(std::move(model));
  if (!prepared.ok()) {
    const RankOptions& ranks = session->options_.ranks;
    RefuseToJoin(ranks, ranks.communicator.get(), prepared);
    return prepared;
  }
  const bool joins = session->ranks_->setup().has_others() && session->options_.ranks.join;
  if (joins) RETURN_IF_ERROR(session->ranks_->Join());
  return session;
} catch (const std::bad_alloc&) {
  return OutOfMemory("memory ran out while a training session was made");
}

Status TrainingSession::Prepare(Model model) {
  RETURN_IF_ERROR(CheckOptions(options_));
  fallback_ = TrainingFallback(options_.providers, options_.fallback);
  ASSIGN_OR_RETURN(RankSetup setup,
                   SetUpRanks(options_, options_.ranks.communicator.get(), fallback_->providers()));
  *progress_ = ProgressOf(options_, setup);
  ASSIGN_OR_RETURN(const auto ops, OpBinding::Create(options_.custom_ops));
  RETURN_IF_ERROR(ops->Declare(model));  // gradients go through ops of the user's, too
  std::vector<std::string> trainable = options_.step.trainable;
  if (options_.step.gradient_inputs) {
    RETURN_IF_ERROR(CheckNames("trainable: the model has no initializer", trainable,
                               InitializerNames(*model.graph)));
  } else {
    ASSIGN_OR_RETURN(trainable, TrainableNames(model, options_.step, &options_.step.loss));
  }
  std::vector<std::string> grouped;
  for (const ParameterGroup& group : options_.step.groups)
    grouped.insert(grouped.end(), group.names.begin(), group.names.end());
  RETURN_IF_ERROR(
      CheckNames("groups: the model has no initializer", grouped, InitializerNames(*model.graph)));
  parameters_ = std::make_unique<SessionParameters>(std::move(model), trainable, fallback_,
                                                    options_.share_parameters);
  ranks_ = std::make_unique<RankGroup>(options_, std::move(setup), *control_, *parameters_,
                                       *progress_, fallback_);
  runs_ = std::make_unique<StepRuns>(options_, std::move(trainable), *control_, *parameters_,
                                     *progress_, *ranks_, fallback_);
  return runs_->MakePrograms();
}

Result<double> TrainingSession::Step(const NamedValues& feeds,
                                     std::vector<ExecutionObserver*> observers) {
  return runs_->Step(progress_->update_is_due(), feeds, std::move(observers));
}

Result<double> TrainingSession::Accumulate(const NamedValues& feeds,
                                           std::vector<ExecutionObserver*> observers) {
  const int given = options_.step.accumulation_steps;
  if (given == 0) return runs_->Step(/*is_update=*/false, feeds, std::move(observers));
  return InvalidArgument(
      "Accumulate: the session counts micro-steps itself, accumulation_steps is " +
      std::to_string(given) + "; with 0 the caller decides");
}

RankMemory TrainingSession::Memory() const { return ranks_->Memory(); }

Result<StepMemory> TrainingSession::MemoryOf(const NamedValues& feeds) {
  ASSIGN_OR_RETURN(const SharedPlan plan, runs_->Plan(feeds));
  StepMemory memory{.kept = Memory(), .arena = plan->arena_bytes(), .peak = plan->arena_bytes()};
  for (const PlannedBuffer& buffer : plan->buffers()) {
    if (buffer.kind != PlannedBuffer::Kind::kArena) memory.peak += buffer.bytes;
  }
  if (options_.undo) memory.peak += memory.kept.parameters + memory.kept.optimizer_state;
  return memory;
}

Status TrainingSession::Save(const std::string& path, CheckpointProperties properties) const {
  return SaveSession({*parameters_, *progress_, *ranks_, *runs_}, path, std::move(properties));
}

Result<CheckpointProperties> TrainingSession::Restore(const std::string& path) {
  return RestoreSession({*parameters_, *progress_, *ranks_, *runs_}, path);
}

Status TrainingSession::ExportModel(const std::string& path,
                                    const std::vector<std::string>& outputs) const {
  ASSIGN_OR_RETURN(const Model model, parameters_->TrainedModel(outputs));
  return WriteModel(model, path);
}

Status TrainingSession::ExportTraining(const std::string& path, const TrainingExport& what) const {
  return caesura::ExportTraining({*parameters_, *progress_, *ranks_, *runs_}, path, what);
}

Status TrainingSession::Regroup(std::shared_ptr<Communicator> communicator) {
  const Status replaced = ReplaceRanks(communicator);
  if (!replaced.ok()) {
    RefuseToJoin(options_.ranks, communicator.get(), replaced);
    return replaced;
  }
  if (ranks_->setup().has_others()) RETURN_IF_ERROR(ranks_->Join());
  else if (parameters_->lost())
    return InvalidArgument("no rank has whole parameters: Restore a checkpoint first");
  parameters_->set_lost(std::nullopt);
  progress_->DropSums();
  return {};
}

Status TrainingSession::ReplaceRanks(std::shared_ptr<Communicator> communicator) {
  RETURN_IF_ERROR(parameters_->CheckNoStepWaits());
  const bool had_others = ranks_->setup().has_others();
  RETURN_IF_ERROR(ranks_->Replace(std::move(communicator)));
  return had_others == ranks_->setup().has_others() ? Status() : runs_->MakePrograms();
}

}  // namespace caesura
