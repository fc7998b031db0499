// SPDX-License-Identifier: Apache-2.0
// The executor: runs the steps of a plan on a state from its program counter until a yield or the
// end. A yield is not an error and costs no more than a return.
#ifndef CAESURA_CORE_EXECUTE_PARTIAL_EXECUTOR_H_
#define CAESURA_CORE_EXECUTE_PARTIAL_EXECUTOR_H_

#include <climits>

#include "core/execute/execution_state.h"

namespace caesura {

// The reason for which a run has returned without an error.
enum class RunOutcome {
  kYielded,   // state.TakeYielded() has values; go on with state.Resume() and Run()
  kStopped,   // before the limit, or suspended (RunOptions::suspend); go on with Run()
  kFinished,  // state.TakeFetches() has the graph's outputs
};

// Runs plans. It has no state of its own.
class PartialExecutor {
 public:
  // Stops before step `limit` if that comes first. Fails with kInvalidArgument, and changes
  // nothing, unless state.stage() is kReady. On any other failure the state is kFailed; the error
  // names op type, node, provider and, where known, the user's source. Thread safety: any number of
  // states of one plan at the same time.
  static Result<RunOutcome> Run(ExecutionState& state, int limit = INT_MAX);

 private:
  template <bool observed, bool polled>
  static Result<RunOutcome> RunSteps(ExecutionState& state, int end);
  static Status RunObserved(ExecutionState& state, const PlanStep& step, int pc);
  static Status RunStep(ExecutionState& state, const PlanStep& step);
  static Status RunNonComputeStep(ExecutionState& state, const PlanStep& step);
  // dynamic_step.cc
  static Status RunDynamic(ExecutionState& state, const PlanStep& step);
  static Status PlaceDynamicOutputs(ExecutionState& state, const PlanStep& step,
                                    const KernelInfo& info, const KernelDef& def,
                                    const std::vector<RuntimeValue>& inputs);
  static Status RunCached(ExecutionState& state, const PlanStep& step);
  static Status RunCopy(ExecutionState& state, const PlanStep& step);
};

}  // namespace caesura

#endif  // CAESURA_CORE_EXECUTE_PARTIAL_EXECUTOR_H_
