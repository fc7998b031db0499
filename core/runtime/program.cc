// SPDX-License-Identifier: Apache-2.0
#include "core/runtime/program.h"

#include <algorithm>
#include <new>
#include <utility>

#include "core/base/status_macros.h"
#include "core/distributed/run_collectives.h"
#include "core/execute/partial_executor.h"
#include "core/profile/run_recorder.h"

namespace caesura {

struct WaitingRun::Run {
  Program* program;
  VersionedGraph on = {};
  StartedRun started = {};
  // To do the run again where the providers fail; nothing where that is not possible.
  std::optional<RunRequest> request = std::nullopt;
  std::unique_ptr<UndoLog> undo = nullptr;
  AtYield at_yield = AtYield::kFail;
  bool is_counted = false;  // ProviderFallback::CountRun, at its first yield
};

Result<std::unique_ptr<Program>> Program::Create(Model source,
                                                 std::shared_ptr<ProviderFallback> fallback,
                                                 PreparedGraphOptions options) {
  std::unique_ptr<Program> out(
      new Program(std::move(source), std::move(fallback), std::move(options)));
  auto first = out->Current();
  if (!first.ok()) {
    RETURN_IF_ERROR(
        out->SwitchProviders(0, first.status(), FallbackStage::kCreate, nullptr, PlanRequest()));
    ASSIGN_OR_RETURN(first, out->Current());
  }
  out->model_ = first->graph->model();
  return out;
}

VersionedGraph Program::Get() const {
  std::lock_guard<std::mutex> lock(mutex_);
  return current_;
}

VersionedGraph Program::Put(VersionedGraph made) {
  std::lock_guard<std::mutex> lock(mutex_);
  current_ = made;
  return made;
}

Result<VersionedGraph> Program::Current() {
  VersionedGraph current = Get();
  if (current.generation >= fallback_->generation()) return current;
  std::lock_guard<std::mutex> lock(making_);
  current = Get();
  const int generation = fallback_->generation();
  if (current.generation >= generation) return current;
  // Without a fallback to come the graph is prepared from the model itself.
  const bool last = generation == 0 && !fallback_->can_fall_back();
  auto made = PreparedGraph::Create(last ? std::move(source_) : source_.Clone(),
                                    fallback_->providers(), options_);
  if (!made.ok())
    return generation == 0 ? made.status() : fallback_->DescribeRetryFailure(made.status());
  if (generation > 0) source_.graph.reset();
  return Put({*std::move(made), generation});
}

Status Program::SwitchProviders(int generation, const Status& cause, FallbackStage stage,
                                const std::vector<RuntimeValue>* feeds,
                                const PlanRequest& request) {
  const auto rebuild = [&](const ProviderList& providers) -> Result<ProviderFallback::Bytes> {
    ASSIGN_OR_RETURN(std::shared_ptr<PreparedGraph> made,
                     PreparedGraph::Create(source_.Clone(), providers, options_));
    SharedPlan plan;
    if (feeds != nullptr) {
      ASSIGN_OR_RETURN(plan, made->Plan(*feeds, request));
    }
    const ProviderFallback::Bytes bytes = CountBytes(*source_.graph, made->graph(), plan.get());
    source_.graph.reset();
    Put({std::move(made), 1});
    return bytes;
  };
  return fallback_->SwitchProviders(generation, cause, stage, rebuild);
}

template <typename Attempt>
Status Program::WithFallback(const std::vector<RuntimeValue>& feeds, const PlanRequest& request,
                             const bool& may_run_again, const Attempt& attempt) {
  ASSIGN_OR_RETURN(VersionedGraph current, Current());
  FallbackStage stage = FallbackStage::kCompile;
  const auto plan_and_run = [&]() -> Status {
    ASSIGN_OR_RETURN(const SharedPlan plan, current.graph->Plan(feeds, request));
    stage = FallbackStage::kRun;
    return attempt(current, plan);
  };
  Status status = plan_and_run();
  if (!status.ok()) {
    if (stage == FallbackStage::kRun && !may_run_again) return status;
    RETURN_IF_ERROR(SwitchProviders(current.generation, status, stage, &feeds, request));
    ASSIGN_OR_RETURN(current, Current());
    status = plan_and_run();
    if (!status.ok()) return fallback_->DescribeRetryFailure(status);
  }
  return {};
}

Result<SharedPlan> Program::Plan(const std::vector<RuntimeValue>& feeds,
                                 const PlanRequest& request) {
  SharedPlan found;
  RETURN_IF_ERROR(
      WithFallback(feeds, request, true, [&](const VersionedGraph&, const SharedPlan& plan) {
        found = plan;
        return Status();
      }));
  return found;
}

namespace {

// Null: the run has nothing to keep. `may_stop`: the run stops before some step, which is known.
std::unique_ptr<UndoLog> MakeUndoLog(const ExecutionPlan& plan, Undo undo, bool may_retry,
                                     bool may_stop, const RunOptions& options) {
  if (undo == Undo::kNever || (undo == Undo::kForRetry && !may_retry)) return nullptr;
  const bool watched = undo == Undo::kAtRisk && !options.observers.empty();
  const UndoScope scope = undo == Undo::kAlways || watched ? UndoScope::kAll : UndoScope::kSteps;
  // Ranks wait for each other in a step, and cannot do one again by themselves.
  const bool may_hold = scope == UndoScope::kSteps && options.observers.empty() && !may_stop &&
                        options.collectives == nullptr;
  UndoLog log(plan, scope, may_hold);
  return log.needed() ? std::make_unique<UndoLog>(std::move(log)) : nullptr;
}

}  // namespace

Status Program::RunOnce(const VersionedGraph& on, const SharedPlan& plan, RunRequest request,
                        bool may_retry, RunResult* result) {
  WaitingRun::Run run{.program = this, .on = on, .at_yield = request.at_yield};
  const int suspend_at = std::exchange(request.suspend_at, INT_MAX);
  if (may_retry) run.request = request;  // without what belongs to this try alone
  run.undo = MakeUndoLog(*plan, request.undo, may_retry, suspend_at != INT_MAX, request.options);
  std::optional<RunRequest> again;
  if (run.undo != nullptr && run.undo->may_hold()) again = request;
  if (request.options.collectives != nullptr) RETURN_IF_ERROR(request.options.collectives->Begin());
  request.options.undo = run.undo.get();
  const std::shared_ptr<RunRecorder> recorder = ProcessRecorder();
  if (recorder != nullptr) request.options.observers.push_back(recorder.get());
  ASSIGN_OR_RETURN(run.started,
                   on.graph->Start(plan, std::move(request.feeds), std::move(request.options)));
  const Status status = Continue(std::move(run), suspend_at, result);
  if (!again || !result->parameters.was_interrupted) return status;
  result->parameters = {};
  return RunOnce(on, plan, *std::move(again), may_retry, result);  // where no update waits any more
}

Status Program::Continue(WaitingRun::Run run, int suspend_at, RunResult* result) {
  ExecutionState& state = *run.started.state;
  const Result<RunOutcome> outcome = PartialExecutor::Run(state, suspend_at);
  if (outcome.ok() && *outcome == RunOutcome::kYielded && run.at_yield != AtYield::kFail) {
    result->values = state.TakeYielded();
    state.set_observers({});
    if (run.at_yield == AtYield::kWait) run.request.reset();
    run.is_counted = true;
    result->waiting = WaitingRun(std::move(run));
    return {};
  }
  const bool stopped = outcome.ok() && *outcome == RunOutcome::kStopped;
  const Status owned = stopped ? state.OwnFeeds() : Status();
  if (stopped && owned.ok()) {
    state.set_observers({});
    if (run.request) {
      run.request->feeds = state.feeds();
      run.request->options.observers.clear();
    }
    const std::string place = std::to_string(state.program_counter()) + " of " +
                              std::to_string(state.plan().steps().size());
    result->waiting = WaitingRun(std::move(run));
    return Suspended("the run waits before step " + place);
  }
  const std::shared_ptr<PreparedGraph> graph = run.on.graph;
  ASSIGN_OR_RETURN(result->values, graph->EndRun(std::move(run.started),
                                                 owned.ok() ? outcome : Result<RunOutcome>(owned),
                                                 &result->parameters));
  return {};
}

RunResult Program::Run(RunRequest request) {
  // Feeds and options may be needed twice. Other ranks do not do a run again with this one.
  const bool alone = request.options.collectives == nullptr;
  const bool may_retry = alone && fallback_->can_fall_back();
  bool may_run_again = alone;
  RunResult result;
  const auto run = [&](const VersionedGraph& on, const SharedPlan& plan) {
    result.has_begun = true;
    Status status = RunOnce(on, plan, may_retry ? request : std::move(request), may_retry, &result);
    may_run_again &= result.parameters.state != ParameterState::kInconsistent;
    return status;
  };
  // Lack of memory is the run's status, so that the caller learns what became of the parameters.
  try {
    result.status = WithFallback(request.feeds, request.plan, may_run_again, run);
    if (result.status.ok()) fallback_->CountRun();
  } catch (const std::bad_alloc&) {
    result.status = OutOfMemory("memory ran out in a run");
  }
  return result;
}

Status Program::FallBack(const Status& cause, const std::vector<RuntimeValue>& feeds) {
  const Status switched = SwitchProviders(Get().generation, ProviderFailure(cause.message()),
                                          FallbackStage::kRun, &feeds, PlanRequest());
  return switched.ok() ? switched : Status(cause.code(), switched.message());
}

Result<WaitingRun> Program::Restore(const StateSnapshot& snapshot, RunOptions options, Undo undo) {
  std::vector<RuntimeValue> feeds;
  PlanRequest request;
  for (const StateSnapshot::Feed& feed : snapshot.feeds) {
    const FeedSpec& spec = feed.spec;
    request.known.push_back(spec);
    feeds.push_back(feed.value.has_value() ? feed.value : RuntimeValue(spec.value));
    if (feeds.back().has_value()) continue;
    // Only planning looks at what stands for feeds that no later step reads.
    if (!spec.is_tensor) feeds.back() = RuntimeValue::Sequence({});
    if (!spec.is_tensor || spec.dtype == DType::kUndefined) continue;
    ASSIGN_OR_RETURN(feeds.back(), Tensor::Allocate(spec.dtype, spec.shape));
  }
  WaitingRun::Run run{.program = this};
  if (snapshot.yield_index >= 0) {
    run.at_yield = AtYield::kWait;
    run.is_counted = true;
  }
  ASSIGN_OR_RETURN(run.on, Current());
  ASSIGN_OR_RETURN(const SharedPlan plan, run.on.graph->Plan(feeds, request));
  const bool has_written = std::any_of(snapshot.parameters.begin(), snapshot.parameters.end(),
                                       [](const auto& p) { return p.written; });
  if (!has_written) {
    run.undo = MakeUndoLog(*plan, undo, fallback_->can_fall_back(), true, options);
    options.undo = run.undo.get();
  }
  ASSIGN_OR_RETURN(run.started, run.on.graph->Restore(plan, snapshot, std::move(options)));
  return WaitingRun(std::move(run));
}

// --- a run that waits ---

WaitingRun::WaitingRun(Run run) : run_(new Run(std::move(run))) {}

void WaitingRun::Drop::operator()(Run* run) const {
  if (run->started.state != nullptr) run->on.graph->Return(std::move(run->started));
  delete run;
}

ExecutionState& WaitingRun::state() const { return assert(run_ != nullptr), *run_->started.state; }

ParameterEffect WaitingRun::GiveUp() {
  assert(run_ != nullptr);
  ParameterEffect parameters;
  static_cast<void>(run_->on.graph->EndRun(std::move(run_->started),
                                           Cancelled("the run was given up"), &parameters));
  run_.reset();
  return parameters;
}

Result<WaitingRun> WaitingRun::Clone() const {
  ASSIGN_OR_RETURN(std::unique_ptr<ExecutionState> copy, state().Clone());
  return WaitingRun(Run{.program = run_->program,
                        .on = run_->on,
                        .started = {run_->started.cache, std::move(copy)},
                        .at_yield = run_->at_yield,
                        .is_counted = run_->is_counted});
}

Status WaitingRun::Continue(const Rest& rest, RunResult* result) {
  if (state().stage() == ExecutionState::Stage::kYielded) {
    RETURN_IF_ERROR(state().Resume(rest.values));
    run_->request.reset();  // a second try would have to give these values, too
  }
  std::vector<ExecutionObserver*> observers = rest.observers;
  const std::shared_ptr<RunRecorder> recorder = ProcessRecorder();
  if (recorder != nullptr) observers.push_back(recorder.get());
  state().set_observers(std::move(observers));
  Run run = std::move(*run_);
  run_.reset();
  return Program::Continue(std::move(run), rest.suspend_at, result);
}

RunResult WaitingRun::GoOn(Rest rest) {
  assert(run_ != nullptr && (!rest.keep || run_->undo == nullptr));
  Program& program = *run_->program;
  const int generation = run_->on.generation;
  const bool at_yield = state().stage() == ExecutionState::Stage::kYielded;
  const bool is_counted = run_->is_counted;
  RunResult result;
  std::optional<RunRequest> again = run_->request;
  if (again) again->options.observers = rest.observers;
  try {
    if (rest.keep) {
      Result<WaitingRun> copy = Clone();
      result.status = copy.ok() ? copy->Continue(rest, &result) : copy.status();
    } else {
      result.status = Continue(rest, &result);
    }
  } catch (const std::bad_alloc&) {
    result.status = OutOfMemory("memory ran out in a run");
  }
  if (result.status.ok() && !is_counted) program.fallback_->CountRun();
  const bool failed = !result.status.ok() && !result.waiting;
  if (!failed || !again || result.left_parameters_changed()) return result;
  const Status switched = program.SwitchProviders(generation, result.status, FallbackStage::kRun,
                                                  &again->feeds, again->plan);
  if (!switched.ok()) {
    result.status = switched;
    return result;
  }
  result = program.Run(*std::move(again));
  if (!at_yield || !result.status.ok()) return result;
  // The new run has handed out at the yield what the old one had handed out before.
  *this = std::move(result.waiting);
  result = GoOn(std::move(rest));
  if (!result.status.ok()) result.status = program.fallback_->DescribeRetryFailure(result.status);
  return result;
}

}  // namespace caesura
