// SPDX-License-Identifier: Apache-2.0
#include "core/execute/partial_executor.h"

#include <algorithm>

#include "core/execute/execution_observer.h"

namespace caesura {
namespace {

Status Located(const Status& status, const Step& step) {
  std::string label = step.node->Label();
  label.insert(label.size() - 1, " on " + step.provider->name());
  if (status.message().rfind(label, 0) == 0) return status;
  // The kernel may have named the node already, without the provider.
  const std::string bare = step.node->Label() + " ";
  const std::string what =
      status.message().rfind(bare, 0) == 0 ? status.message().substr(bare.size()) : status.message();
  const std::string source = step.node->source().empty() ? "" : " (from " + step.node->source() + ")";
  return Status(status.code(), label + " " + what + source);
}

}  // namespace

Result<RunOutcome> PartialExecutor::Run(ExecutionState& state, int limit) {
  if (state.phase_ != ExecutionState::Phase::kReady) {
    return InvalidArgument("Run needs a state that was started or resumed");
  }
  const ExecutionPlan& plan = *state.plan_;
  const std::vector<Step>& steps = plan.steps();
  const int end = static_cast<int>(std::min<size_t>(steps.size(), static_cast<size_t>(std::max(limit, 0))));
  const std::vector<ExecutionObserver*>& observers = state.options_.observers;
  const bool observed = !observers.empty();
  void* const* addresses = state.addresses_.data();
  char* arena = static_cast<char*>(state.arena_->data());
  for (ExecutionObserver* observer : observers) observer->OnEnter(plan, state);
  Status status;
  auto leave = [&](Result<RunOutcome> outcome) {
    for (ExecutionObserver* observer : observers) observer->OnLeave(plan, state, outcome.status());
    return outcome;
  };
  for (; state.pc_ < end; ++state.pc_) {
    const int pc = state.pc_;
    const Step& step = steps[pc];
    if (observed) {
      for (ExecutionObserver* observer : observers) observer->OnFenceBefore(plan, state, pc);
      for (ExecutionObserver* observer : observers) observer->OnStepBegin(plan, state, pc);
    }
    switch (step.kind) {
      case Step::Kind::kCompute: {
        KernelContext context(addresses, plan.arguments().data() + step.first_argument, step.input_count,
                              arena + step.scratch_offset, static_cast<uint32_t>(pc), &state);
        status = step.compute(context);
        break;
      }
      case Step::Kind::kLate: status = state.RunLate(pc); break;
      case Step::Kind::kCached: status = state.RunCached(pc); break;
      case Step::Kind::kYield: break;
    }
    if (observed) {
      for (ExecutionObserver* observer : observers) observer->OnStepEnd(plan, state, pc, status);
      for (ExecutionObserver* observer : observers) observer->OnFenceAfter(plan, state, pc);
    }
    if (!status.ok()) {
      state.phase_ = ExecutionState::Phase::kFailed;
      return leave(Located(status, step));
    }
    if (step.kind == Step::Kind::kYield) {
      state.yield_index_ = step.index;
      Status handed = state.HandOutYield();
      if (!handed.ok()) {
        state.phase_ = ExecutionState::Phase::kFailed;
        return leave(Located(handed, step));
      }
      if (!step.release.empty()) state.Release(step);
      ++state.pc_;
      state.phase_ = ExecutionState::Phase::kYielded;
      return leave(RunOutcome::kYielded);
    }
    if (!step.release.empty()) state.Release(step);
  }
  if (state.pc_ < static_cast<int>(steps.size())) return leave(RunOutcome::kStopped);
  Status handed = state.HandOutFetches();
  if (!handed.ok()) {
    state.phase_ = ExecutionState::Phase::kFailed;
    return leave(handed);
  }
  state.phase_ = ExecutionState::Phase::kFinished;
  return leave(RunOutcome::kFinished);
}

}  // namespace caesura
