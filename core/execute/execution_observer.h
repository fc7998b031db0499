// SPDX-License-Identifier: Apache-2.0
// Profilers, dumps, ranges and memory profiles watch a run by this interface. The executor's loop
// knows only it, and with no observer attached it does not even ask.
#ifndef CAESURA_CORE_EXECUTE_EXECUTION_OBSERVER_H_
#define CAESURA_CORE_EXECUTE_EXECUTION_OBSERVER_H_

#include "core/base/status.h"
#include "core/plan/execution_plan.h"

namespace caesura {

class ExecutionState;

// Watches the steps of runs. The caller owns it and keeps it until its runs have ended. All
// callbacks come on the thread that runs the state, in program order.
class ExecutionObserver {
 public:
  virtual ~ExecutionObserver() = default;
  // A run starts or goes on at `state.program_counter()`.
  virtual void OnEnter(const ExecutionPlan&, const ExecutionState&) {}
  // Before the inputs of a step are waited for (fences), and just before its kernel starts.
  virtual void OnFenceBefore(const ExecutionPlan&, const ExecutionState&, int /*step*/) {}
  virtual void OnStepBegin(const ExecutionPlan&, const ExecutionState&, int /*step*/) {}
  // Just after the kernel, whether it failed or not; its outputs are there if it did not.
  virtual void OnStepEnd(const ExecutionPlan&, const ExecutionState&, int /*step*/, const Status&) {
  }
  // After the outputs' fences.
  virtual void OnFenceAfter(const ExecutionPlan&, const ExecutionState&, int /*step*/) {}
  // The run yielded, stopped, finished or failed.
  virtual void OnLeave(const ExecutionPlan&, const ExecutionState&, const Status&) {}
};

}  // namespace caesura

#endif  // CAESURA_CORE_EXECUTE_EXECUTION_OBSERVER_H_
