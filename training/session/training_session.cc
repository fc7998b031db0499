// SPDX-License-Identifier: Apache-2.0
#include "training/session/training_session.h"

#include <algorithm>
#include <cassert>
#include <cmath>
#include <new>
#include <unordered_set>
#include <utility>

#include "core/base/names.h"
#include "core/base/status_macros.h"
#include "core/providers/tensor_copy.h"
#include "graph_transforms/pipeline.h"
#include "core/gradient/training_mode.h"
#include "training/step/gradient_reduction.h"

#include "training/step/parameters.h"
#include "training/step/parameter_placement.h"

namespace caesura {
namespace {

std::unordered_set<std::string> NameSet(const std::vector<std::string>& names) {
  return {names.begin(), names.end()};
}

}  // namespace

Result<std::unique_ptr<TrainingSession>> TrainingSession::Create(Model model,
                                                                 TrainingOptions options) try {
  std::unique_ptr<TrainingSession> session(new TrainingSession);
  session->options_ = std::move(options);
  RETURN_IF_ERROR(session->Prepare(std::move(model)));
  return session;
} catch (const std::bad_alloc&) {
  return OutOfMemory("memory ran out while a training session was made");
}

Status TrainingSession::Prepare(Model model) {
  RETURN_IF_ERROR(options_.schedule.Check());
  if (options_.step.accumulation_steps < 0) {
    return InvalidArgument("accumulation_steps: expected 0 (the caller decides) or more, got " +
                           std::to_string(options_.step.accumulation_steps));
  }
  fallback_ = TrainingFallback(options_.providers, options_.fallback);
  ASSIGN_OR_RETURN(RankPlan plan,
                   PlanRanks(options_, options_.ranks.communicator.get(), fallback_->providers()));
  RETURN_IF_ERROR(CheckFailures(plan));
  fallback_->BeforeSwitch(
      [this](const ProviderList& providers) { return BringParametersToHost(providers); });
  const DTypeSet precisions = {DType::kFloat32, DType::kBFloat16, DType::kFloat16};
  if (!precisions.Contains(options_.step.precision)) {
    return InvalidArgument("precision: expected one of " + precisions.ToString() + ", got " +
                           DTypeName(options_.step.precision));
  }
  RETURN_IF_ERROR(options_.step.loss_scaling.Check());
  progress_.schedule = options_.schedule;
  progress_.micro_steps_to_update = plan.MicroSteps(options_.step.accumulation_steps);
  progress_.logical_shards = plan.logical_shards;
  progress_.scales_loss = options_.step.scales_loss();
  progress_.loss_is_mean = plan.is_ordered() || options_.step.mean_over == MeanOver::kTokens;
  progress_.base_rate = LearningRate(options_.step.optimizer);
  progress_.seed = options_.seed;
  progress_.scaler = GradScaler(options_.step.loss_scaling);
  program_feeds_ = {{kLearningRateInput, Tensor::Scalar<double>(0)},
                    {kStepInput, Tensor::Scalar<int64_t>(0)},
                    {kResetInput, Tensor::Scalar<bool>(false)},
                    {kMicroStepInput, Tensor::Scalar<int64_t>(0)},
                    {kGradientFactorInput, Tensor::Scalar<double>(1)},
                    {kLossScaleInput, Tensor::Scalar<float>(1)},
                    {kRankShareInput, Tensor::Scalar<double>(1)}};
  RETURN_IF_ERROR(FillCoefficients());
  ASSIGN_OR_RETURN(ops_, OpBinding::Create(options_.custom_ops));
  RETURN_IF_ERROR(ops_->Declare(model));  // gradients go through ops of the user's, too
  ASSIGN_OR_RETURN(trainable_, TrainableNames(model, options_.step, &options_.step.loss));
  std::vector<std::string> grouped;
  for (const ParameterGroup& group : options_.step.groups)
    grouped.insert(grouped.end(), group.names.begin(), group.names.end());
  RETURN_IF_ERROR(
      CheckNames("groups: the model has no initializer", grouped, InitializerNames(*model.graph)));
  parameters_ = std::make_unique<SessionParameters>(std::move(model), trainable_, fallback_,
                                                    options_.share_parameters);
  ranks_ = std::make_unique<RankGroup>(options_, std::move(plan), control_, *parameters_, progress_,
                                       fallback_);
  RETURN_IF_ERROR(MakePrograms());
  const bool joins = ranks_->plan().has_others() && options_.ranks.join;
  return joins ? ranks_->Join(update_->graph()) : Status();
}

Status TrainingSession::MakePrograms() {
  const int version = parameters_->version();
  Model model = parameters_->model().Clone();
  ASSIGN_OR_RETURN(ops_, OpBinding::Create(options_.custom_ops));
  RETURN_IF_ERROR(ops_->Attach(model, trainable_));
  RETURN_IF_ERROR(RunForwardPasses(model, trainable_, options_.disabled_passes));
  RETURN_IF_ERROR(
      RunPasses(PrecisionPasses(options_.step.precision), model, options_.disabled_passes)
          .status());
  RETURN_IF_ERROR(parameters_->MakeCopies(*model.graph));
  ASSIGN_OR_RETURN(update_, MakeStep(model, options_.step, true, /*in_parts=*/false));
  if (progress_.micro_steps_to_update != 1) {
    ASSIGN_OR_RETURN(accumulate_, MakeStep(model, options_.step, false, /*in_parts=*/false));
  }
  if (options_.failures.action == OnFailure::kRetryInParts) {
    StepOptions parts = options_.step;
    parts.accumulation_steps = 0;
    parts.mean_over = MeanOver::kBatches;
    ASSIGN_OR_RETURN(parts_update_, MakeStep(model, parts, true, /*in_parts=*/true));
    ASSIGN_OR_RETURN(parts_accumulate_, MakeStep(model, parts, false, /*in_parts=*/true));
  }
  RETURN_IF_ERROR(MakeEvaluation(model));
  made_of_ = version;
  return {};
}

Status TrainingSession::FillCoefficients() {
  const std::vector<std::string>& fed = options_.step.fed_coefficients;
  if (fed.empty()) return {};
  const auto& groups = options_.step.groups;
  Tensor all =
      Tensor::Zeros(DType::kFloat64, Shape{static_cast<int64_t>(fed.size() * (groups.size() + 1))});
  double* at = all.data<double>();
  for (size_t g = 0; g <= groups.size(); ++g) {
    const Optimizer& own = options_.step.optimizer;
    const std::map<std::string, double> values =
        Coefficients(g < groups.size() ? ForGroup(own, groups[g]) : own);
    for (const std::string& name : fed) {
      const auto found = values.find(name);
      if (found == values.end())
        return InvalidArgument("fed_coefficients: the optimizer has no '" + name + "'");
      *at++ = found->second;
    }
  }
  program_feeds_.emplace(kCoefficientsInput, std::move(all));
  return {};
}

std::span<double> TrainingSession::coefficients() {
  assert(!options_.step.fed_coefficients.empty());
  const Tensor& all = program_feeds_.at(kCoefficientsInput).tensor();
  return {all.data<double>(), static_cast<size_t>(all.elements())};
}

Result<std::unique_ptr<Program>> TrainingSession::MakeStep(const Model& model,
                                                           const StepOptions& step,
                                                           bool with_update, bool in_parts) {
  ASSIGN_OR_RETURN(StepProgram program, BuildStepProgram(model, trainable_, step, with_update,
                                                         in_parts ? RankPlan() : ranks_->plan()));
  RETURN_IF_ERROR(ops_->MakeInstances(*program.graph));
  if (in_parts) {
    if (parts_parameters_.size() == 0) {
      ShareParameters(parameters_->set(), parameters_->set().size(), program.graph.get());
      if (!options_.share_parameters) PlaceParameters(program, fallback_->providers());
      AddParameters(*program.graph, program.parameters, &parts_parameters_);
    }
    ShareParameters(parts_parameters_, static_cast<int>(program.parameters.size()),
                    program.graph.get());
  } else {
    RETURN_IF_ERROR(parameters_->Share(program));
  }
  const auto passes =
      [made = SessionStep{.parameters = program.parameters,
                          .early = options_.step.commit == CommitMode::kEagerConsume,
                          .exchanges = ranks_->plan().has_others(),
                          .may_recompute = options_.memory_budget > 0}](
          const ProviderList& providers) { return SessionStepPasses(providers, made); };
  const auto report = std::make_shared<CpuFallbackReport>();
  PreparedGraphOptions options{
      .parameters = program.parameters,
      .parameter_set = in_parts ? &parts_parameters_ : &parameters_->set(),
      .ops = ops_,
      .passes = WithPlacement(passes, {.device_inputs = options_.device_inputs, .report = report}),
      .disabled_passes = options_.disabled_passes,
      .fit = WithinBudget(options_.memory_budget)};
  options.plan.threads = options_.threads;
  options.plan.cache_values = false;  // every update changes every parameter
  Model source;
  source.graph = std::move(program.graph);
  ASSIGN_OR_RETURN(auto made, Program::Create(std::move(source), fallback_, std::move(options)));
  if (with_update) cpu_fallback_ = *report;
  return made;
}

Status TrainingSession::MakeEvaluation(const Model& model) {
  PreparedGraphOptions options{.parameters = parameters_->Names(),
                               .parameter_set = &parameters_->set(),
                               .ops = ops_,
                               .disabled_passes = options_.disabled_passes};
  options.passes =
      WithPlacement([changing = NameSet(options.parameters)](const ProviderList& providers) {
        return FusionPasses(providers, changing);
      });
  options.plan.threads = options_.threads;
  for (const bool with_loss : {true, false}) {
    Model copy = model.Clone();
    RETURN_IF_ERROR(SwitchToEvaluation(*copy.graph));
    if (with_loss) {
      ASSIGN_OR_RETURN(Value * loss, AddLoss(*copy.graph, options_.step.loss));
      copy.graph->AddOutput(loss);
    }
    ASSIGN_OR_RETURN((with_loss ? evaluate_ : predict_),
                     Program::Create(std::move(copy), fallback_, options));
  }
  return {};
}

void TrainingSession::set_learning_rate(double rate) {
  progress_.base_rate = rate;
  if (!suspended()) return;
  const ExecutionState& state = *waiting_.run->started.state;
  const std::vector<Value*>& inputs = state.plan().graph().inputs();
  for (size_t i = 0; i < inputs.size(); ++i) {
    const bool is_rate = inputs[i]->name() == kLearningRateInput && state.feeds()[i].is_tensor();
    if (is_rate) *state.feeds()[i].tensor().data<double>() = progress_.learning_rate();
  }
}

double TrainingSession::AppliedRate() {
  const std::vector<std::string>& fed = options_.step.fed_coefficients;
  const auto rate = std::find(fed.begin(), fed.end(), "learning_rate");
  return rate == fed.end() ? progress_.learning_rate() : coefficients()[rate - fed.begin()];
}

const NamedValues& TrainingSession::ProgramFeeds(int64_t accumulated) {
  auto set = [&](const char* name, auto value) {
    *program_feeds_.find(name)->second.tensor().data<decltype(value)>() = value;
  };
  set(kLearningRateInput, progress_.learning_rate());
  set(kStepInput, progress_.updates + 1);
  set(kResetInput, accumulated == 0);
  set(kMicroStepInput, accumulated);
  set(kGradientFactorInput, 1.0 / static_cast<double>(accumulated + 1));
  set(kLossScaleInput, progress_.scaler.scale());
  set(kRankShareInput, 1.0 / ranks_->plan().ranks);
  return program_feeds_;
}

RunOptions TrainingSession::MakeRun(uint64_t step) {
  RunOptions run;
  run.parameters = &parameters_->ForRun();
  run.seed = progress_.seed;
  run.step = step;
  control_.Apply(run);
  return run;
}

Result<double> TrainingSession::Step(const NamedValues& feeds,
                                     std::vector<ExecutionObserver*> observers) {
  return RunStep(progress_.update_is_due(), feeds, std::move(observers));
}

Result<double> TrainingSession::Accumulate(const NamedValues& feeds,
                                           std::vector<ExecutionObserver*> observers) {
  if (options_.step.accumulation_steps != 0) {
    return InvalidArgument(
        "Accumulate: the session counts micro-steps itself, accumulation_steps is " +
        std::to_string(options_.step.accumulation_steps) + "; with 0 the caller decides");
  }
  return RunStep(/*updates=*/false, feeds, std::move(observers));
}

Result<double> TrainingSession::RunStep(bool updates, const NamedValues& feeds,
                                        std::vector<ExecutionObserver*> observers) try {
  if (parameters_->lost())
    return InvalidArgument("an earlier step or Restore failed midway: " + WayBack());
  if (suspended()) return InvalidArgument("a step waits; ResumeStep or DropStep first");
  RETURN_IF_ERROR(Refresh());
  Program& program = updates ? *update_ : *accumulate_;
  ASSIGN_OR_RETURN(
      std::vector<RuntimeValue> bound,
      BindFeeds(program.graph(), feeds, FeedCheck::kDType, ProgramFeeds(progress_.accumulated())));
  RunOptions run = MakeRun(static_cast<uint64_t>(progress_.random_step(ranks_->rank())));
  if (progress_.next_seed) {
    run.seed = *progress_.next_seed;
    run.step = 0;
  }
  run.observers = std::move(observers);
  if (ranks_->plan().has_others()) RETURN_IF_ERROR(ranks_->BeginStep(run));
  StepRequest step{updates,
                   feeds,
                   {.feeds = std::move(bound), .options = std::move(run), .undo = UndoOfSteps()}};
  const bool once = options_.failures.action == OnFailure::kStop;
  RunRequest first = once ? std::move(step.run) : step.run;
  first.suspend_at = control_.TakeSuspendAt();
  Result<double> loss = AnswerFailure(step, program.Run(std::move(first)));
  if (suspended()) waiting_.seed = progress_.next_seed;
  if (suspended() || loss.ok()) progress_.next_seed.reset();
  return loss;
} catch (const std::bad_alloc&) {
  return OutOfMemory("memory ran out in a training step");
}

Result<double> TrainingSession::ResumeStep(std::vector<ExecutionObserver*> observers) try {
  if (!suspended()) return InvalidArgument("no step waits");
  auto waiting = std::exchange(waiting_, {});
  parameters_->set_step_waits(false);
  waiting.run->started.state->set_deadline(control_.deadline());
  Program& program = waiting.updates ? *update_ : *accumulate_;
  Result<double> loss = EndRun(
      waiting.updates,
      program.Resume(std::move(waiting.run), std::move(observers), control_.TakeSuspendAt()));
  if (suspended()) waiting_.seed = waiting.seed;
  else if (!loss.ok() && !progress_.next_seed) progress_.next_seed = waiting.seed;
  return loss;
} catch (const std::bad_alloc&) {
  return OutOfMemory("memory ran out in a training step");
}

Status TrainingSession::DropStep() {
  if (!suspended()) return InvalidArgument("no step waits");
  if (!progress_.next_seed) progress_.next_seed = waiting_.seed;
  ParameterEffect effect = Program::Drop(std::exchange(waiting_, {}).run);
  parameters_->set_step_waits(false);
  if (effect.state != ParameterState::kInconsistent) return {};
  parameters_->set_lost(std::move(effect.inconsistent));
  return Cancelled(DescribeLoss() + "it was given up");
}

Result<double> TrainingSession::EndRun(bool updates, RunResult result) {
  if (result.suspended != nullptr) {
    waiting_ = {std::move(result.suspended), updates, {}};
    parameters_->set_step_waits(true);
    return result.status;
  }
  if (result.left_parameters_changed())
    parameters_->set_lost(std::move(result.parameters.inconsistent));
  if (ranks_->plan().has_others()) ranks_->EndStep(result);
  if (!result.status.ok())
    return parameters_->lost() ? result.status.WithPrefix(DescribeLoss()) : result.status;
  // The step has committed. Only EndMicroStep can fail, after an update that was skipped.
  parameters_->ForRun().TouchAll();
  const double loss = ScalarOf(result.values.front().tensor());
  result.values.erase(result.values.begin());
  bool skipped = false;
  if (updates && options_.step.scales_loss()) {
    skipped = !std::isfinite(ScalarOf(result.values.back().tensor()));
    result.values.pop_back();
  }
  const double rate = AppliedRate();
  RETURN_IF_ERROR(progress_.EndMicroStep(updates, loss, skipped));
  if (updates && !skipped) curves_.Add(progress_.updates, progress_.update_loss, rate);
  const auto first_gradient =
      result.values.begin() + static_cast<int64_t>(options_.step.keep_outputs.size());
  kept_outputs_.assign(std::make_move_iterator(result.values.begin()),
                       std::make_move_iterator(first_gradient));
  result.values.erase(result.values.begin(), first_gradient);
  gradients_ = std::move(result.values);
  return loss;
}

Result<Evaluation> TrainingSession::Evaluate(const NamedValues& feeds) try {
  RETURN_IF_ERROR(Refresh());
  ASSIGN_OR_RETURN(std::vector<RuntimeValue> bound,
                   BindFeeds(evaluate_->graph(), feeds, FeedCheck::kDType));
  RunResult result = evaluate_->Run({.feeds = std::move(bound), .options = MakeRun(0)});
  RETURN_IF_ERROR(result.status);  // a run that was suspended is dropped with the result
  std::vector<RuntimeValue>& outputs = result.values;
  Evaluation out;
  out.loss = ScalarOf(outputs.back().tensor());
  outputs.pop_back();
  out.outputs = std::move(outputs);
  return out;
} catch (const std::bad_alloc&) {
  return OutOfMemory("memory ran out in an evaluation");
}

Result<std::vector<RuntimeValue>> TrainingSession::Predict(const NamedValues& feeds) try {
  RETURN_IF_ERROR(Refresh());
  ASSIGN_OR_RETURN(std::vector<RuntimeValue> bound,
                   BindFeeds(predict_->graph(), feeds, FeedCheck::kDType));
  RunResult result = predict_->Run({.feeds = std::move(bound), .options = MakeRun(0)});
  RETURN_IF_ERROR(result.status);
  return std::move(result.values);
} catch (const std::bad_alloc&) {
  return OutOfMemory("memory ran out in a prediction");
}

Status TrainingSession::Regroup(std::shared_ptr<Communicator> communicator) {
  if (suspended()) return InvalidArgument("a step waits; ResumeStep or DropStep first");
  const bool had_others = ranks_->plan().has_others();
  RETURN_IF_ERROR(ranks_->Replace(std::move(communicator)));
  const bool has_others = ranks_->plan().has_others();
  if (had_others != has_others) RETURN_IF_ERROR(MakePrograms());
  if (has_others) RETURN_IF_ERROR(ranks_->Join(update_->graph()));
  else if (parameters_->lost())
    return InvalidArgument("no rank has whole parameters: Restore a checkpoint first");
  parameters_->set_lost(std::nullopt);
  progress_.DropSums();
  return {};
}

Result<std::shared_ptr<const ExecutionPlan>> TrainingSession::StepPlan(
    const NamedValues& feeds) try {
  RETURN_IF_ERROR(Refresh());
  ASSIGN_OR_RETURN(
      const std::vector<RuntimeValue> ordered,
      BindFeeds(update_->graph(), feeds, FeedCheck::kDType, ProgramFeeds(progress_.accumulated())));
  return update_->Plan(ordered);
} catch (const std::bad_alloc&) {
  return OutOfMemory("memory ran out while a step was planned");
}

}  // namespace caesura
