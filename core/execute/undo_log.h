// SPDX-License-Identifier: Apache-2.0
// UndoLog keeps what a run overwrites of its parameters until it is clear that the run comes to its
// end. A step that fails in the middle of its updates is undone, and can be done again.
#ifndef CAESURA_CORE_EXECUTE_UNDO_LOG_H_
#define CAESURA_CORE_EXECUTE_UNDO_LOG_H_

#include <cstdint>
#include <map>

#include "core/plan/execution_plan.h"

namespace caesura {

class ExecutionState;
class WriteGate;

// The failures after which a run is undone.
enum class UndoScope : uint8_t {
  kSteps,  // a step, or the copy of a result (ExecutionPlan::last_risk)
  kAll,    // also of the caller: an observer that throws, a run that is given up
};

// An undo log is for one run (RunOptions::undo). Parameters that are written after the last place
// where the run may fail are not kept, and cost nothing. With updates on the CPU after all
// gradients, and UndoScope::kSteps, these are all of them. What steps of a device write is kept in
// its memory, but for updates at the end of the plan that wait at a gate
// (core/providers/write_gate.h).
class UndoLog {
 public:
  // `may_hold`: updates may wait at a gate. The run's end is then the only place to stop after
  // them.
  UndoLog(const ExecutionPlan& plan, UndoScope scope, bool may_hold);
  UndoLog(UndoLog&&) = default;
  ~UndoLog();
  // False: a run of the plan writes nothing before its last place of failure.
  bool needed() const { return needed_; }
  // True while updates wait. The run is then not suspended: few steps are left of it.
  bool holds() const { return closed_ != nullptr; }
  // True if updates may wait in this run.
  bool may_hold() const { return may_hold_; }
  // True if the run has failed as its gate was interrupted: nothing else is wrong with it.
  bool was_interrupted() const { return interrupted_; }
  // The executor calls it before it runs a step. Where it fails the step must not run.
  Status BeforeStep(const ExecutionState& state, int step) {
    return step <= last_ ? KeepOutputs(state, step) : Status();
  }
  // All steps are under way: updates that wait are let through. The executor calls it before it
  // waits for a device. Where it fails they still wait.
  Status Release();
  // In place of the provider's Synchronise.
  Status Wait(const ExecutionProvider& provider);
  // Host memory to which a copy from the device may go while updates wait; null: there is none.
  std::shared_ptr<Buffer> HostMemory(size_t bytes) const;
  // Puts back what a failed run has overwritten. False where not all was kept, with nothing put
  // back, or where a device does not take it.
  bool Undo(const ExecutionState& state);

 private:
  Status KeepOutputs(const ExecutionState& state, int step);
  // True if the step waits at the gate, which is closed before the first one.
  Result<bool> Hold(const PlanStep& step);

  int last_;  // the last step that may fail; the number of steps where it is the way out
  bool needed_;
  bool may_hold_;
  bool interrupted_ = false;
  int held_;  // the first step that may wait; the number of steps where none may
  const WriteGate* closed_ = nullptr;
  const WriteGate* released_ = nullptr;  // whose updates may have written
  std::map<int, Tensor> kept_;           // by parameter, each on the parameter's device
};

}  // namespace caesura

#endif  // CAESURA_CORE_EXECUTE_UNDO_LOG_H_
