// SPDX-License-Identifier: Apache-2.0
#include "training/session/step_runs.h"

#include <algorithm>
#include <cassert>
#include <cmath>
#include <limits>
#include <new>
#include <unordered_set>
#include <utility>

#include "core/base/status_macros.h"
#include "core/gradient/training_mode.h"
#include "core/graph/pass.h"
#include "core/runtime/feeds.h"
#include "graph_transforms/pipeline.h"
#include "training/files/checkpoint.h"
#include "training/files/training_curves.h"
#include "training/session/rank_group.h"
#include "training/session/run_control.h"
#include "training/session/waiting_step.h"
#include "training/step/gradient_reduction.h"
#include "training/step/parameter_placement.h"
#include "training/step/loss.h"
#include "training/step/parameters.h"
#include "training/step/step_program.h"

namespace caesura {
namespace {

constexpr char kWaitingUpdates[] = "session.waiting_updates";  // whether the step that waits does

}  // namespace

StepRuns::StepRuns(const TrainingOptions& options, std::vector<std::string> trainable,
                   RunControl& control, SessionParameters& parameters, TrainingProgress& progress,
                   RankGroup& ranks, std::shared_ptr<ProviderFallback> fallback)
    : options_(options),
      trainable_(std::move(trainable)),
      control_(control),
      parameters_(parameters),
      progress_(progress),
      ranks_(ranks),
      fallback_(std::move(fallback)),
      parts_(std::make_unique<ParameterSet>()),
      cpu_fallback_(std::make_unique<CpuFallbackReport>()),
      waiting_(std::make_unique<WaitingStep>()),
      curves_(std::make_unique<TrainingCurves>()) {
  fallback_->BeforeSwitch([this](const ProviderList& providers) {
    RETURN_IF_ERROR(parameters_.BringToHost(providers));
    return BringToHost(parts_.get(), providers);
  });
  program_feeds_ = {{kLearningRateInput, Tensor::Scalar<double>(0)},
                    {kStepInput, Tensor::Scalar<int64_t>(0)},
                    {kResetInput, Tensor::Scalar<bool>(false)},
                    {kMicroStepInput, Tensor::Scalar<int64_t>(0)},
                    {kGradientFactorInput, Tensor::Scalar<double>(1)},
                    {kLossScaleInput, Tensor::Scalar<float>(1)},
                    {kRankShareInput, Tensor::Scalar<double>(1)}};
}

StepRuns::~StepRuns() = default;

bool StepRuns::suspended() const { return static_cast<bool>(waiting_->run); }
const std::vector<std::string>& StepRuns::differences() const { return waiting_->differences; }
const Graph& StepRuns::step_graph() const { return update_->graph(); }

Status StepRuns::Refresh() { return made_of_ != parameters_.version() ? MakePrograms() : Status(); }

Result<Model> StepRuns::ForwardModel(OpBinding& ops) const {
  Model model = parameters_.model().Clone();
  RETURN_IF_ERROR(ops.Attach(model, trainable_));
  std::vector<std::string> changing = trainable_;
  changing.insert(changing.end(), options_.step.statistics.begin(), options_.step.statistics.end());
  RETURN_IF_ERROR(RunForwardPasses(model, changing, options_.disabled_passes));
  RETURN_IF_ERROR(
      RunPasses(PrecisionPasses(options_.step.precision), model, options_.disabled_passes)
          .status());
  return model;
}

Result<StepProgram> StepRuns::BuildProgram(const StepOptions& step, bool is_update,
                                           const std::function<Status(Model&)>& prepare) const {
  ASSIGN_OR_RETURN(const std::shared_ptr<OpBinding> ops, OpBinding::Create(options_.custom_ops));
  ASSIGN_OR_RETURN(Model model, ForwardModel(*ops));
  RETURN_IF_ERROR(prepare(model));
  return BuildStepProgram(model, trainable_, step, is_update, ranks_.setup());
}

Status StepRuns::MakePrograms() {
  RETURN_IF_ERROR(FillCoefficients());
  const int version = parameters_.version();
  ASSIGN_OR_RETURN(ops_, OpBinding::Create(options_.custom_ops));
  ASSIGN_OR_RETURN(const Model model, ForwardModel(*ops_));
  RETURN_IF_ERROR(parameters_.MakeCopies(*model.graph));
  ASSIGN_OR_RETURN(update_, MakeStep(model, /*is_update=*/true));
  if (progress_.micro_steps_to_update != 1) {
    ASSIGN_OR_RETURN(accumulate_, MakeStep(model, /*is_update=*/false));
  }
  if (options_.failures.action == OnFailure::kRetryInParts) {
    ASSIGN_OR_RETURN(parts_update_, MakeStepInParts(model, /*is_update=*/true));
    ASSIGN_OR_RETURN(parts_accumulate_, MakeStepInParts(model, /*is_update=*/false));
  }
  ASSIGN_OR_RETURN(evaluate_, MakeEvaluation(model, /*with_loss=*/true));
  ASSIGN_OR_RETURN(predict_, MakeEvaluation(model, /*with_loss=*/false));
  made_of_ = version;
  return {};
}

Status StepRuns::FillCoefficients() {
  const std::vector<std::string>& fed = options_.step.fed_coefficients;
  if (fed.empty() || program_feeds_.count(kCoefficientsInput)) return {};
  const auto& groups = options_.step.groups;
  Tensor all =
      Tensor::Zeros(DType::kFloat64, Shape{static_cast<int64_t>(fed.size() * (groups.size() + 1))});
  double* at = all.data<double>();
  for (size_t g = 0; g <= groups.size(); ++g) {
    const Optimizer& own = options_.step.optimizer;
    std::map<std::string, double> values =
        Coefficients(g < groups.size() ? ForGroup(own, groups[g]) : own);
    values.emplace(kStepOffset, 0);
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

std::span<double> StepRuns::coefficients() {
  assert(!options_.step.fed_coefficients.empty());
  const Tensor& all = program_feeds_.at(kCoefficientsInput).tensor();
  return {all.data<double>(), static_cast<size_t>(all.elements())};
}

Result<std::unique_ptr<Program>> StepRuns::Prepare(StepProgram program, const ParameterSet& set,
                                                   CpuFallbackReport* report) const {
  const auto passes =
      [made = SessionStep{.parameters = program.parameters,
                          .early = options_.step.commit == CommitMode::kEagerConsume,
                          .exchanges = ranks_.setup().has_others(),
                          .may_recompute = options_.memory_budget > 0}](
          const ProviderList& providers) { return SessionStepPasses(providers, made); };
  const auto found = std::make_shared<CpuFallbackReport>();
  PreparedGraphOptions options{
      .parameters = std::move(program.parameters),
      .parameter_set = &set,
      .ops = ops_,
      .passes = WithPlacement(passes, {.device_inputs = options_.device_inputs, .report = found}),
      .disabled_passes = options_.disabled_passes,
      .fit = WithinBudget(options_.memory_budget)};
  options.plan.threads = options_.threads;
  options.plan.cache_values = false;  // every update changes every parameter
  Model source;
  source.graph = std::move(program.graph);
  ASSIGN_OR_RETURN(auto made, Program::Create(std::move(source), fallback_, std::move(options)));
  if (report != nullptr) *report = *found;
  return made;
}

Result<std::unique_ptr<Program>> StepRuns::MakeStep(const Model& model, bool is_update) {
  ASSIGN_OR_RETURN(StepProgram program,
                   BuildStepProgram(model, trainable_, options_.step, is_update, ranks_.setup()));
  RETURN_IF_ERROR(ops_->MakeInstances(*program.graph));
  RETURN_IF_ERROR(parameters_.Share(program));
  if (is_update && ranks_.setup().has_others()) ranks_.DescribeStep(program);
  return Prepare(std::move(program), parameters_.set(), is_update ? cpu_fallback_.get() : nullptr);
}

Result<std::unique_ptr<Program>> StepRuns::MakeStepInParts(const Model& model, bool is_update) {
  StepOptions step = options_.step;
  step.accumulation_steps = 0;
  step.mean_over = MeanOver::kBatches;
  ASSIGN_OR_RETURN(StepProgram program, BuildStepProgram(model, trainable_, step, is_update));
  RETURN_IF_ERROR(ops_->MakeInstances(*program.graph));
  if (parts_->size() == 0) {
    ShareParameters(parameters_.set(), parameters_.set().size(), program.graph.get());
    if (!options_.share_parameters) PlaceParameters(program, fallback_->providers());
    AddParameters(*program.graph, program.parameters, parts_.get());
  }
  ShareParameters(*parts_, static_cast<int>(program.parameters.size()), program.graph.get());
  return Prepare(std::move(program), *parts_, nullptr);
}

Result<std::unique_ptr<Program>> StepRuns::MakeEvaluation(const Model& model,
                                                          bool with_loss) const {
  Model copy = model.Clone();
  RETURN_IF_ERROR(SwitchToEvaluation(*copy.graph));
  if (with_loss) {
    ASSIGN_OR_RETURN(Value * loss, AddLoss(*copy.graph, options_.step.loss));
    copy.graph->AddOutput(loss);
  }
  const std::vector<std::string> names = parameters_.Names();
  PreparedGraphOptions options{
      .parameters = names,
      .parameter_set = &parameters_.set(),
      .ops = ops_,
      .passes = WithPlacement(
          [changing = std::unordered_set<std::string>(names.begin(), names.end())](
              const ProviderList& providers) { return FusionPasses(providers, changing); }),
      .disabled_passes = options_.disabled_passes};
  options.plan.threads = options_.threads;
  return Program::Create(std::move(copy), fallback_, std::move(options));
}

void StepRuns::set_learning_rate(double rate) {
  progress_.base_rate = rate;
  if (!suspended()) return;
  const ExecutionState& state = waiting_->run.state();
  const std::vector<Value*>& inputs = state.plan().graph().inputs();
  for (size_t i = 0; i < inputs.size(); ++i) {
    const bool is_rate = inputs[i]->name() == kLearningRateInput && state.feeds()[i].is_tensor();
    if (is_rate) *state.feeds()[i].tensor().data<double>() = progress_.learning_rate();
  }
}

double StepRuns::AppliedRate() {
  const std::vector<std::string>& fed = options_.step.fed_coefficients;
  const auto rate = std::find(fed.begin(), fed.end(), "learning_rate");
  return rate == fed.end() ? progress_.learning_rate() : coefficients()[rate - fed.begin()];
}

const NamedValues& StepRuns::ProgramFeeds() { return ProgramFeeds(progress_.accumulated()); }

const NamedValues& StepRuns::ProgramFeeds(int64_t accumulated) {
  auto set = [&](const char* name, auto value) {
    *program_feeds_.find(name)->second.tensor().data<decltype(value)>() = value;
  };
  set(kLearningRateInput, progress_.learning_rate());
  set(kStepInput, progress_.updates + 1);
  set(kResetInput, accumulated == 0);
  set(kMicroStepInput, accumulated);
  set(kGradientFactorInput, 1.0 / static_cast<double>(accumulated + 1));
  set(kLossScaleInput, progress_.scaler.scale());
  set(kRankShareInput, 1.0 / ranks_.setup().ranks);
  return program_feeds_;
}

RunOptions StepRuns::MakeRun(uint64_t step) {
  RunOptions run;
  run.parameters = &parameters_.ForRun();
  run.seed = progress_.seed;
  run.step = step;
  control_.Apply(run);
  return run;
}

Undo StepRuns::UndoOfSteps() const {
  if (options_.undo) return Undo::kAlways;
  return options_.step.commit == CommitMode::kLate ? Undo::kAtRisk : Undo::kForRetry;
}

void StepRuns::Wait(WaitingStep waiting) {
  *waiting_ = std::move(waiting);
  parameters_.set_step_waits(suspended());
}

Result<double> StepRuns::Step(bool is_update, const NamedValues& feeds,
                              std::vector<ExecutionObserver*> observers) try {
  if (parameters_.lost())
    return InvalidArgument("an earlier step or Restore failed midway: " + WayBack());
  RETURN_IF_ERROR(parameters_.CheckNoStepWaits());
  RETURN_IF_ERROR(Refresh());
  Program& program = ProgramOf(is_update);
  ASSIGN_OR_RETURN(
      std::vector<RuntimeValue> bound,
      BindFeeds(program.graph(), feeds, FeedCheck::kDType, ProgramFeeds(progress_.accumulated())));
  RunOptions run = MakeRun(static_cast<uint64_t>(progress_.micro_steps));
  if (progress_.next_seed) {
    run.seed = *progress_.next_seed;
    run.step = 0;
  }
  if (ranks_.setup().has_others()) {
    const bool is_fed = !options_.step.fed_coefficients.empty();
    RETURN_IF_ERROR(
        ranks_.BeginStep(run, is_update, is_fed ? coefficients() : std::span<double>()));
  }
  run.observers = std::move(observers);
  Request step{is_update,
               feeds,
               {.feeds = std::move(bound), .options = std::move(run), .undo = UndoOfSteps()}};
  const bool once = options_.failures.action == OnFailure::kStop;
  RunRequest first = once ? std::move(step.run) : step.run;
  first.suspend_at = control_.TakeSuspendAt();
  RunResult result = program.Run(std::move(first));
  const bool skipped = result.status.ok() ? false : AnswerFailure(step, result);
  if (skipped) return std::numeric_limits<double>::quiet_NaN();
  Result<double> loss = EndRun(is_update, std::move(result));
  if (suspended()) waiting_->seed = progress_.next_seed;
  if (suspended() || loss.ok()) progress_.next_seed.reset();
  return loss;
} catch (const std::bad_alloc&) {
  return OutOfMemory("memory ran out in a training step");
}

Result<double> StepRuns::Resume(std::vector<ExecutionObserver*> observers) try {
  if (!suspended()) return InvalidArgument("no step waits");
  WaitingStep waiting = std::move(*waiting_);
  Wait({});
  waiting.run.state().set_deadline(control_.deadline());
  Result<double> loss =
      EndRun(waiting.is_update, waiting.run.GoOn({.observers = std::move(observers),
                                                  .suspend_at = control_.TakeSuspendAt()}));
  if (suspended()) waiting_->seed = waiting.seed;
  else if (!loss.ok() && !progress_.next_seed) progress_.next_seed = waiting.seed;
  return loss;
} catch (const std::bad_alloc&) {
  return OutOfMemory("memory ran out in a training step");
}

Status StepRuns::Drop() {
  if (!suspended()) return InvalidArgument("no step waits");
  WaitingStep waiting = std::move(*waiting_);
  Wait({});
  if (!progress_.next_seed) progress_.next_seed = waiting.seed;
  ParameterEffect effect = waiting.run.GiveUp();
  if (effect.state != ParameterState::kInconsistent) return {};
  parameters_.set_lost(std::move(effect.inconsistent));
  return Cancelled(DescribeLoss() + "it was given up");
}

double StepRuns::ScalarOf(const RuntimeValue& output) {
  double value = 0;
  const Tensor& tensor = output.tensor();
  DispatchNumeric(tensor.dtype(), [&](auto tag) {
    value = static_cast<double>(*tensor.data<typename decltype(tag)::type>());
  });
  return value;
}

Result<double> StepRuns::EndRun(bool is_update, RunResult result) {
  if (result.waiting) {
    Wait({std::move(result.waiting), is_update});
    return result.status;
  }
  if (result.left_parameters_changed())
    parameters_.set_lost(std::move(result.parameters.inconsistent));
  if (ranks_.setup().has_others()) ranks_.EndStep(result);
  if (!result.status.ok()) {
    if (parameters_.lost()) return result.status.WithPrefix(DescribeLoss());
    if (result.status.code() != StatusCode::kRankFailure) return result.status;
    return RankFailure(result.status.message() + "; nothing has changed here. " + NextOfRanks());
  }
  // The step has committed. Only EndMicroStep can fail, after an update that was skipped.
  parameters_.ForRun().TouchAll();
  const double loss = ScalarOf(result.values.front());
  result.values.erase(result.values.begin());
  bool skipped = false;
  if (is_update && progress_.scales_loss) {
    skipped = !std::isfinite(ScalarOf(result.values.back()));
    result.values.pop_back();
  }
  if (is_update && options_.step.clip_norm > 0) {
    gradient_norm_ = ScalarOf(result.values.back());
    result.values.pop_back();
  }
  const double rate = AppliedRate();
  RETURN_IF_ERROR(progress_.EndMicroStep(is_update, loss, skipped));
  if (is_update && !skipped) curves_->Add(progress_.updates, progress_.update_loss, rate);
  const auto first_gradient =
      result.values.begin() + static_cast<int64_t>(options_.step.keep_outputs.size());
  kept_outputs_.assign(std::make_move_iterator(result.values.begin()),
                       std::make_move_iterator(first_gradient));
  result.values.erase(result.values.begin(), first_gradient);
  gradients_ = std::move(result.values);
  return loss;
}

Result<Evaluation> StepRuns::Evaluate(const NamedValues& feeds) try {
  RETURN_IF_ERROR(Refresh());
  ASSIGN_OR_RETURN(std::vector<RuntimeValue> bound,
                   BindFeeds(evaluate_->graph(), feeds, FeedCheck::kDType));
  RunResult result = evaluate_->Run({.feeds = std::move(bound), .options = MakeRun(0)});
  RETURN_IF_ERROR(result.status);  // a run that was suspended is dropped with the result
  Evaluation out;
  out.loss = ScalarOf(result.values.back());
  result.values.pop_back();
  out.outputs = std::move(result.values);
  return out;
} catch (const std::bad_alloc&) {
  return OutOfMemory("memory ran out in an evaluation");
}

Result<std::vector<RuntimeValue>> StepRuns::Predict(const NamedValues& feeds) try {
  RETURN_IF_ERROR(Refresh());
  ASSIGN_OR_RETURN(std::vector<RuntimeValue> bound,
                   BindFeeds(predict_->graph(), feeds, FeedCheck::kDType));
  RunResult result = predict_->Run({.feeds = std::move(bound), .options = MakeRun(0)});
  RETURN_IF_ERROR(result.status);
  return std::move(result.values);
} catch (const std::bad_alloc&) {
  return OutOfMemory("memory ran out in a prediction");
}

Result<SharedPlan> StepRuns::Plan(const NamedValues& feeds) try {
  RETURN_IF_ERROR(Refresh());
  ASSIGN_OR_RETURN(
      const std::vector<RuntimeValue> bound,
      BindFeeds(update_->graph(), feeds, FeedCheck::kDType, ProgramFeeds(progress_.accumulated())));
  return update_->Plan(bound);
} catch (const std::bad_alloc&) {
  return OutOfMemory("memory ran out while a step was planned");
}

Result<size_t> StepRuns::StepBytes(const NamedValues& feeds) {
  ASSIGN_OR_RETURN(const SharedPlan plan, Plan(feeds));
  return plan->arena_bytes();
}

Status StepRuns::Save(Checkpoint& to) const {
  if (!suspended()) return {};
  to.properties[kWaitingUpdates] = int64_t{waiting_->is_update};
  ASSIGN_OR_RETURN(to.step, waiting_->run.Capture());
  return {};
}

Result<WaitingStep> StepRuns::TakeUp(const Checkpoint& from) {
  WaitingStep waiting;
  if (!from.step) return waiting;
  RETURN_IF_ERROR(Refresh());
  ASSIGN_OR_RETURN(const int64_t is_update, from.Get<int64_t>(kWaitingUpdates));
  waiting.is_update = is_update != 0;
  ASSIGN_OR_RETURN(waiting.run,
                   ProgramOf(waiting.is_update).Restore(*from.step, MakeRun(0), UndoOfSteps()));
  waiting.differences = DescribeDifferences(*from.step, waiting.run.state().plan());
  return waiting;
}

void StepRuns::GoOn(WaitingStep waiting) {
  Wait(std::move(waiting));
  curves_->Clear();  // they are of another run
}

}  // namespace caesura
