// SPDX-License-Identifier: Apache-2.0
#include "core/execute/partial_executor.h"

#include <algorithm>
#include <chrono>
#include <new>
#include <optional>
#include <stdexcept>

#include "core/execute/execution_observer.h"
#include "core/execute/run_cancel.h"
#include "core/execute/undo_log.h"
#include "core/plan/node_error.h"

namespace caesura {
namespace {

constexpr char kCancelled[] = "the run was ended by its caller";

bool IsCancelled(const ExecutionState& state) {
  const std::atomic<bool>* cancel = state.options().cancel.get();
  return cancel != nullptr && *cancel && !state.has_written();
}

// `status`, at the step that the program counter is at.
Status AtCounter(const ExecutionState& state, const Status& status) {
  const std::vector<PlanStep>& steps = state.plan().steps();
  if (state.program_counter() == static_cast<int>(steps.size()))
    return Status(status.code(), status.message() + " while results were handed out");
  const PlanStep& step = steps[state.program_counter()];
  return AtNode(status, *step.node, step.provider->name());
}

// Calls fn(), and makes a Status of what it throws: of lack of memory, and of exceptions of
// observers and kernels.
template <typename Fn>
auto Guarded(const ExecutionState& state, const Fn& fn) -> decltype(fn()) {
  try {
    return fn();
  } catch (const std::bad_alloc&) {
    return AtCounter(state, OutOfMemory("memory ran out"));
  } catch (const std::length_error&) {  // more elements than any vector can have
    return AtCounter(state, OutOfMemory("memory ran out"));
  } catch (const std::exception& error) {
    return AtCounter(state, Internal(std::string("an exception ended the run: ") + error.what()));
  }
}

bool IsSuspended(const ExecutionState& state) {
  const RunOptions& options = state.options();
  if (options.collectives != nullptr) return false;
  if (options.undo != nullptr && options.undo->holds()) return false;
  if (options.suspend != nullptr && *options.suspend) return true;
  return options.deadline && std::chrono::steady_clock::now() >= *options.deadline;
}

}  // namespace

// Runs every kind of step except a prepared kernel.
Status PartialExecutor::RunNonComputeStep(ExecutionState& state, const PlanStep& step) {
  switch (step.kind) {
    case PlanStep::Kind::kCompute: break;
    case PlanStep::Kind::kDynamic: return RunDynamic(state, step);
    case PlanStep::Kind::kCached: return RunCached(state, step);
    case PlanStep::Kind::kCopy: return RunCopy(state, step);
    case PlanStep::Kind::kYield: state.yield_index_ = step.index; return state.HandOutYield();
  }
  return Internal("no such kind of step");
}

inline Status PartialExecutor::RunStep(ExecutionState& state, const PlanStep& step) {
  if (step.kind != PlanStep::Kind::kCompute) [[unlikely]]
    return RunNonComputeStep(state, step);
  const ExecutionPlan& plan = *state.plan_;
  KernelContext context(state.addresses_.data(), plan.arguments().data() + step.first_argument,
                        step.input_count, state.arena_bases_[step.device] + step.scratch_offset,
                        step.subsequence, &state);
  return step.compute(context);
}

Status PartialExecutor::RunObserved(ExecutionState& state, const PlanStep& step, int pc) {
  const ExecutionPlan& plan = *state.plan_;
  const std::vector<ExecutionObserver*>& observers = state.options_.observers;
  for (ExecutionObserver* observer : observers) observer->OnFenceBefore(plan, state, pc);
  for (ExecutionObserver* observer : observers) observer->OnStepBegin(plan, state, pc);
  Status kept;
  if (state.options_.undo != nullptr) kept = state.options_.undo->BeforeStep(state, pc);
  const Status status =
      AtNode(kept.ok() ? RunStep(state, step) : kept, *step.node, step.provider->name());
  for (ExecutionObserver* observer : observers) observer->OnStepEnd(plan, state, pc, status);
  for (ExecutionObserver* observer : observers) observer->OnFenceAfter(plan, state, pc);
  return status;
}

// `observed`: somebody watches the steps. `polled`: somebody may end or suspend the run.
template <bool observed, bool polled>
Result<RunOutcome> PartialExecutor::RunSteps(ExecutionState& state, int end) {
  const std::vector<PlanStep>& steps = state.plan_->steps();
  for (; state.pc_ < end; ++state.pc_) {
    const int pc = state.pc_;
    if (polled && IsCancelled(state)) return Cancelled(kCancelled);
    if (polled && IsSuspended(state)) return RunOutcome::kStopped;
    const PlanStep& step = steps[pc];
    const Status status = observed ? RunObserved(state, step, pc) : RunStep(state, step);
    if (!status.ok()) return AtNode(status, *step.node, step.provider->name());
    if (!step.release.empty()) state.Release(step);
    if (step.kind == PlanStep::Kind::kYield) {
      ++state.pc_;
      state.stage_ = ExecutionState::Stage::kYielded;
      return RunOutcome::kYielded;
    }
  }
  if (state.pc_ < static_cast<int>(steps.size())) return RunOutcome::kStopped;
  Status handed = state.HandOutFetches();
  if (!handed.ok()) return handed;
  state.stage_ = ExecutionState::Stage::kFinished;
  return RunOutcome::kFinished;
}

Result<RunOutcome> PartialExecutor::Run(ExecutionState& state, int limit) {
  if (state.stage_ != ExecutionState::Stage::kReady) {
    return InvalidArgument("Run needs a state that was started or resumed");
  }
  const ExecutionPlan& plan = *state.plan_;
  const int end = std::clamp(limit, 0, static_cast<int>(plan.steps().size()));
  const bool observed = !state.options_.observers.empty() || state.options_.undo != nullptr;
  const bool polled = state.options_.cancel != nullptr || state.options_.suspend != nullptr ||
                      state.options_.deadline;
  if (IsCancelled(state)) {  // also of a plan without steps, as bodies may be
    state.stage_ = ExecutionState::Stage::kFailed;
    return Cancelled(kCancelled);
  }
  std::optional<RunCancel> scope;
  if (state.options_.cancel != nullptr) scope.emplace(state.options_.cancel);
  const auto run = observed ? (polled ? RunSteps<true, true> : RunSteps<true, false>)
                            : (polled ? RunSteps<false, true> : RunSteps<false, false>);
  const std::vector<ExecutionObserver*>& observers = state.options_.observers;
  Result<RunOutcome> outcome = Guarded(state, [&] {
    for (ExecutionObserver* observer : observers) observer->OnEnter(plan, state);
    return run(state, end);
  });
  const Status left = Guarded(state, [&] {
    for (ExecutionObserver* observer : observers) observer->OnLeave(plan, state, outcome.status());
    return Status();
  });
  if (outcome.ok() && !left.ok()) outcome = left;
  if (!outcome.ok()) state.stage_ = ExecutionState::Stage::kFailed;
  return outcome;
}

}  // namespace caesura
