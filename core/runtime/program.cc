// SPDX-License-Identifier: Apache-2.0
#include "core/runtime/program.h"

#include <algorithm>
#include <new>
#include <utility>

#include "core/base/status_macros.h"
#include "core/execute/partial_executor.h"
#include "core/profile/run_recorder.h"

namespace caesura {

Result<std::unique_ptr<Program>> Program::Create(Model source,
                                                 std::shared_ptr<ProviderFallback> fallback,
                                                 PreparedGraphOptions options) {
  std::unique_ptr<Program> out(
      new Program(std::move(source), std::move(fallback), std::move(options)));
  auto first = out->Current();
  if (!first.ok()) {
    RETURN_IF_ERROR(
        out->SwitchProviders(0, first.status(), FallbackPhase::kCreate, nullptr, PlanRequest()));
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

Status Program::SwitchProviders(int generation, const Status& cause, FallbackPhase phase,
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
  return fallback_->SwitchProviders(generation, cause, phase, rebuild);
}

template <typename Attempt>
Status Program::WithFallback(const std::vector<RuntimeValue>& feeds, const PlanRequest& request,
                             const bool& may_run_again, const Attempt& attempt) {
  ASSIGN_OR_RETURN(VersionedGraph current, Current());
  FallbackPhase phase = FallbackPhase::kCompile;
  const auto plan_and_run = [&]() -> Status {
    ASSIGN_OR_RETURN(const SharedPlan plan, current.graph->Plan(feeds, request));
    phase = FallbackPhase::kRun;
    return attempt(current, plan);
  };
  Status status = plan_and_run();
  if (!status.ok()) {
    if (phase == FallbackPhase::kRun && !may_run_again) return status;
    RETURN_IF_ERROR(SwitchProviders(current.generation, status, phase, &feeds, request));
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
  SuspendedRun run{.on = on};
  run.stops_at_yields = request.stops_at_yields;
  const int suspend_at = std::exchange(request.suspend_at, INT_MAX);
  if (may_retry) run.request = request;  // without what belongs to this try alone
  run.undo = MakeUndoLog(*plan, request.undo, may_retry, suspend_at != INT_MAX, request.options);
  std::optional<RunRequest> again;
  if (run.undo != nullptr && run.undo->may_hold()) again = request;
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

Status Program::Continue(SuspendedRun run, int suspend_at, RunResult* result) {
  ExecutionState& state = *run.started.state;
  const Result<RunOutcome> outcome = PartialExecutor::Run(state, suspend_at);
  const bool yielded = outcome.ok() && *outcome == RunOutcome::kYielded && run.stops_at_yields &&
                       state.plan().yields()[state.yield_index()].resume_values.empty();
  if (yielded) {
    result->values = state.TakeYielded();
    RETURN_IF_ERROR(state.Resume({}));
    state.set_observers({});
    run.request.reset();
    result->suspended = std::make_unique<SuspendedRun>(std::move(run));
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
    result->suspended = std::make_unique<SuspendedRun>(std::move(run));
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

RunResult Program::Resume(std::unique_ptr<SuspendedRun> run,
                          std::vector<ExecutionObserver*> observers, int suspend_at) {
  RunResult result;
  std::optional<RunRequest> again = run->request;
  if (again) again->options.observers = observers;
  const int generation = run->on.generation;
  const bool counted = run->stops_at_yields;  // when it came to its first yield
  try {
    const std::shared_ptr<RunRecorder> recorder = ProcessRecorder();
    if (recorder != nullptr) observers.push_back(recorder.get());
    run->started.state->set_observers(std::move(observers));
    result.status = Continue(std::move(*run), suspend_at, &result);
  } catch (const std::bad_alloc&) {
    result.status = OutOfMemory("memory ran out in a run");
  }
  if (result.status.ok() && !counted) fallback_->CountRun();
  const bool failed = !result.status.ok() && result.suspended == nullptr;
  if (!failed || !again || result.left_parameters_changed()) return result;
  const Status switched =
      SwitchProviders(generation, result.status, FallbackPhase::kRun, &again->feeds, again->plan);
  if (switched.ok()) return Run(*std::move(again));
  result.status = switched;
  return result;
}

Status Program::FallBack(const Status& cause, const std::vector<RuntimeValue>& feeds) {
  const Status switched = SwitchProviders(Get().generation, ProviderFailure(cause.message()),
                                          FallbackPhase::kRun, &feeds, PlanRequest());
  return switched.ok() ? switched : Status(cause.code(), switched.message());
}

ParameterEffect Program::Drop(std::unique_ptr<SuspendedRun> run) {
  ParameterEffect parameters;
  const std::shared_ptr<PreparedGraph> graph = run->on.graph;
  static_cast<void>(
      graph->EndRun(std::move(run->started), Cancelled("the run was given up"), &parameters));
  return parameters;
}

Result<std::unique_ptr<SuspendedRun>> Program::Restore(const StateSnapshot& snapshot,
                                                       RunOptions options, Undo undo) {
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
  auto run = std::make_unique<SuspendedRun>();
  ASSIGN_OR_RETURN(run->on, Current());
  ASSIGN_OR_RETURN(const SharedPlan plan, run->on.graph->Plan(feeds, request));
  const bool has_written = std::any_of(snapshot.parameters.begin(), snapshot.parameters.end(),
                                       [](const auto& p) { return p.written; });
  if (!has_written) {
    run->undo = MakeUndoLog(*plan, undo, fallback_->can_fall_back(), true, options);
    options.undo = run->undo.get();
  }
  ASSIGN_OR_RETURN(run->started, run->on.graph->Restore(plan, snapshot, std::move(options)));
  return run;
}

// --- a run that stops at its yield ---

Result<SuspendedRun> Program::RunToYield(std::vector<RuntimeValue> feeds, RunOptions options) {
  SuspendedRun out;
  const bool may_retry = fallback_->can_fall_back();
  if (may_retry) out.request = RunRequest{.feeds = feeds, .options = options};
  const auto run = [&](const VersionedGraph& on, const SharedPlan& plan) -> Status {
    out.on = on;
    ASSIGN_OR_RETURN(out.started, on.graph->Start(plan, may_retry ? feeds : std::move(feeds),
                                                  may_retry ? options : std::move(options)));
    ASSIGN_OR_RETURN(const RunOutcome outcome, PartialExecutor::Run(*out.started.state));
    return outcome == RunOutcome::kYielded ? Status()
                                           : Internal("a module has not stopped at its yield");
  };
  RETURN_IF_ERROR(WithFallback(feeds, PlanRequest(), true, run));
  fallback_->CountRun();
  return out;
}

namespace {

Result<std::vector<RuntimeValue>> RunBackwardOnce(SuspendedRun& run,
                                                  std::vector<RuntimeValue> values, bool keep) {
  StartedRun second{run.started.cache, nullptr};
  if (keep) {
    ASSIGN_OR_RETURN(second.state, run.started.state->Clone());
  }
  ExecutionState& state = keep ? *second.state : *run.started.state;
  RETURN_IF_ERROR(state.Resume(std::move(values)));
  const Result<RunOutcome> outcome = PartialExecutor::Run(state);
  std::vector<RuntimeValue> results = state.TakeFetches();
  if (keep) run.on.graph->Return(std::move(second));
  if (!outcome.ok()) return outcome.status();
  if (*outcome != RunOutcome::kFinished)
    return Internal("a module with one yield has yielded twice");
  return results;
}

}  // namespace

Result<std::vector<RuntimeValue>> Program::RunBackward(SuspendedRun& run,
                                                       const std::vector<RuntimeValue>& values,
                                                       bool keep) {
  auto results = RunBackwardOnce(run, values, keep);
  if (results.ok() || !run.request) return results;
  const std::vector<RuntimeValue>& feeds = run.request->feeds;
  RETURN_IF_ERROR(SwitchProviders(run.on.generation, results.status(), FallbackPhase::kRun, &feeds,
                                  PlanRequest()));
  // The new graph comes to the yield by itself; what it hands out there has been handed out before.
  ASSIGN_OR_RETURN(SuspendedRun again, RunToYield(feeds, run.request->options));
  Return(std::exchange(run, std::move(again)));
  results = RunBackwardOnce(run, values, keep);
  return results.ok() ? std::move(results) : fallback_->DescribeRetryFailure(results.status());
}

}  // namespace caesura
