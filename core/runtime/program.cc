// SPDX-License-Identifier: Apache-2.0
#include "core/runtime/program.h"

#include <new>
#include <optional>
#include <utility>

#include "core/base/status_macros.h"
#include "core/execute/partial_executor.h"
#include "core/execute/undo_log.h"
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
                             const Attempt& attempt) {
  ASSIGN_OR_RETURN(VersionedGraph current, Current());
  FallbackPhase phase = FallbackPhase::kCompile;
  const auto plan_and_run = [&]() -> Status {
    ASSIGN_OR_RETURN(const SharedPlan plan, current.graph->Plan(feeds, request));
    phase = FallbackPhase::kRun;
    return attempt(current, plan);
  };
  Status status = plan_and_run();
  if (!status.ok()) {
    RETURN_IF_ERROR(SwitchProviders(current.generation, status, phase, &feeds, request));
    ASSIGN_OR_RETURN(current, Current());
    status = plan_and_run();
    if (!status.ok()) return fallback_->DescribeRetryFailure(status);
  }
  fallback_->CountRun();
  return {};
}

Result<SharedPlan> Program::Plan(const std::vector<RuntimeValue>& feeds,
                                 const PlanRequest& request) {
  SharedPlan found;
  RETURN_IF_ERROR(WithFallback(feeds, request, [&](const VersionedGraph&, const SharedPlan& plan) {
    found = plan;
    return Status();
  }));
  return found;
}

Status Program::RunOnce(PreparedGraph& graph, const SharedPlan& plan,
                        std::vector<RuntimeValue> feeds, RunOptions options, bool keeps,
                        RunResult* result) {
  std::optional<UndoLog> undo;
  if (keeps) options.undo = &undo.emplace(*plan);
  const std::shared_ptr<RunRecorder> recorder = ProcessRecorder();
  if (recorder != nullptr) options.observers.push_back(recorder.get());
  ASSIGN_OR_RETURN(StartedRun run, graph.Start(plan, std::move(feeds), std::move(options)));
  ASSIGN_OR_RETURN(result->values, graph.RunToEnd(std::move(run), &result->parameters));
  return {};
}

RunResult Program::Run(RunRequest request) {
  const bool may_retry = fallback_->can_fall_back();  // feeds and options may be needed twice
  const bool keeps = request.writes_parameters && may_retry;
  RunResult result;
  const auto run = [&](const VersionedGraph& on, const SharedPlan& plan) {
    return RunOnce(*on.graph, plan, may_retry ? request.feeds : std::move(request.feeds),
                   may_retry ? request.options : std::move(request.options), keeps, &result);
  };
  // Lack of memory is the run's status, so that the caller learns what became of the parameters.
  try {
    result.status = WithFallback(request.feeds, request.plan, run);
  } catch (const std::bad_alloc&) {
    result.status = OutOfMemory("memory ran out in a run");
  }
  return result;
}

// --- a run that stops at its yield ---

Result<YieldedRun> Program::RunToYield(std::vector<RuntimeValue> feeds, RunOptions options) {
  YieldedRun out;
  const bool may_retry = fallback_->can_fall_back();
  if (may_retry) {
    out.feeds = feeds;
    out.options = options;
  }
  const auto run = [&](const VersionedGraph& on, const SharedPlan& plan) -> Status {
    out.on = on;
    ASSIGN_OR_RETURN(out.started, on.graph->Start(plan, may_retry ? feeds : std::move(feeds),
                                                  may_retry ? options : std::move(options)));
    ASSIGN_OR_RETURN(const RunOutcome outcome, PartialExecutor::Run(*out.started.state));
    return outcome == RunOutcome::kYielded ? Status()
                                           : Internal("a module has not stopped at its yield");
  };
  RETURN_IF_ERROR(WithFallback(feeds, PlanRequest(), run));
  return out;
}

namespace {

Result<std::vector<RuntimeValue>> RunBackwardOnce(YieldedRun& run, std::vector<RuntimeValue> values,
                                                  bool keep) {
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

Result<std::vector<RuntimeValue>> Program::RunBackward(YieldedRun& run,
                                                       const std::vector<RuntimeValue>& values,
                                                       bool keep) {
  auto results = RunBackwardOnce(run, values, keep);
  if (results.ok()) return results;
  RETURN_IF_ERROR(SwitchProviders(run.on.generation, results.status(), FallbackPhase::kRun,
                                  &run.feeds, PlanRequest()));
  // The new graph comes to the yield by itself; what it hands out there has been handed out before.
  ASSIGN_OR_RETURN(YieldedRun again, RunToYield(run.feeds, run.options));
  Return(std::exchange(run, std::move(again)));
  results = RunBackwardOnce(run, values, keep);
  return results.ok() ? std::move(results) : fallback_->DescribeRetryFailure(results.status());
}

}  // namespace caesura
