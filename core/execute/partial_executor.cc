// SPDX-License-Identifier: Apache-2.0
#include "core/execute/partial_executor.h"

#include <algorithm>
#include <new>

#include "core/execute/execution_observer.h"
#include "core/execute/run_cancel.h"
#include "core/execute/undo_log.h"
#include "core/plan/node_error.h"

namespace caesura {

// Runs every kind of step except a prepared kernel.
Status PartialExecutor::RunNonComputeStep(ExecutionState& state, const Step& step) {
  switch (step.kind) {
    case Step::Kind::kCompute: break;
    case Step::Kind::kDynamic: return RunDynamic(state, step);
    case Step::Kind::kCached: return RunCached(state, step);
    case Step::Kind::kCopy: return RunCopy(state, step);
    case Step::Kind::kYield: state.yield_index_ = step.index; return state.HandOutYield();
  }
  return Internal("no such kind of step");
}

inline Status PartialExecutor::RunStep(ExecutionState& state, const Step& step) {
  if (step.kind != Step::Kind::kCompute) [[unlikely]]
    return RunNonComputeStep(state, step);
  const ExecutionPlan& plan = *state.plan_;
  KernelContext context(state.addresses_.data(), plan.arguments().data() + step.first_argument,
                        step.input_count, state.arena_bases_[step.device] + step.scratch_offset,
                        step.stream, &state);
  return step.compute(context);
}

Status PartialExecutor::RunObserved(ExecutionState& state, const Step& step, int pc) {
  const ExecutionPlan& plan = *state.plan_;
  const std::vector<ExecutionObserver*>& observers = state.options_.observers;
  for (ExecutionObserver* observer : observers) observer->OnFenceBefore(plan, state, pc);
  for (ExecutionObserver* observer : observers) observer->OnStepBegin(plan, state, pc);
  if (state.options_.undo != nullptr) state.options_.undo->BeforeStep(state, pc);
  const Status status = AtNode(RunStep(state, step), *step.node, step.provider->name());
  for (ExecutionObserver* observer : observers) observer->OnStepEnd(plan, state, pc, status);
  for (ExecutionObserver* observer : observers) observer->OnFenceAfter(plan, state, pc);
  return status;
}

template <bool observed>
Result<RunOutcome> PartialExecutor::RunSteps(ExecutionState& state, int end) try {
  const std::vector<Step>& steps = state.plan_->steps();
  for (; state.pc_ < end; ++state.pc_) {
    const int pc = state.pc_;
    const Step& step = steps[pc];
    const Status status = observed ? RunObserved(state, step, pc) : RunStep(state, step);
    if (!status.ok()) return AtNode(status, *step.node, step.provider->name());
    if (!step.release.empty()) state.Release(step);
    if (step.kind == Step::Kind::kYield) {
      ++state.pc_;
      state.phase_ = ExecutionState::Phase::kYielded;
      return RunOutcome::kYielded;
    }
  }
  if (state.pc_ < static_cast<int>(steps.size())) return RunOutcome::kStopped;
  Status handed = state.HandOutFetches();
  if (!handed.ok()) return handed;
  state.phase_ = ExecutionState::Phase::kFinished;
  return RunOutcome::kFinished;
} catch (const std::bad_alloc&) {
  const std::vector<Step>& steps = state.plan_->steps();
  if (state.pc_ == static_cast<int>(steps.size()))
    return OutOfMemory("memory ran out while results were handed out");
  const Step& step = steps[state.pc_];
  return AtNode(OutOfMemory("memory ran out"), *step.node, step.provider->name());
}

Result<RunOutcome> PartialExecutor::Run(ExecutionState& state, int limit) {
  if (state.phase_ != ExecutionState::Phase::kReady) {
    return InvalidArgument("Run needs a state that was started or resumed");
  }
  const ExecutionPlan& plan = *state.plan_;
  const int end = std::clamp(limit, 0, static_cast<int>(plan.steps().size()));
  // Ends soon after the caller wants it, in bodies too. Once a parameter has been written the run
  // goes on to its end, as half of an update is of no use.
  const auto run = [&]<bool observed>() -> Result<RunOutcome> {
    constexpr int kStepsBetweenLooks = 16;
    const std::atomic<bool>* cancel = state.options_.cancel.get();
    if (cancel == nullptr) return RunSteps<observed>(state, end);
    const RunCancel scope(state.options_.cancel);
    while (!*cancel || HasWritten(state)) {
      Result<RunOutcome> outcome =
          RunSteps<observed>(state, std::min(end, state.pc_ + kStepsBetweenLooks));
      if (!outcome.ok() || *outcome != RunOutcome::kStopped || state.pc_ == end) return outcome;
    }
    return Cancelled("the run was ended by its caller");
  };
  if (state.options_.observers.empty() && state.options_.undo == nullptr) {
    Result<RunOutcome> outcome = run.template operator()<false>();
    if (!outcome.ok()) state.phase_ = ExecutionState::Phase::kFailed;
    return outcome;
  }
  for (ExecutionObserver* observer : state.options_.observers) observer->OnEnter(plan, state);
  Result<RunOutcome> outcome = run.template operator()<true>();
  if (!outcome.ok()) state.phase_ = ExecutionState::Phase::kFailed;
  for (ExecutionObserver* observer : state.options_.observers)
    observer->OnLeave(plan, state, outcome.status());
  return outcome;
}

}  // namespace caesura
