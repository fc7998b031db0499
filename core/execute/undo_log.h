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

// The failures after which a run is undone.
enum class UndoScope : uint8_t {
  // A step of another provider than the CPU's fails, or one that allocates, or the copy of a
  // result.
  // The CPU provider's prepared kernels do not fail once they write.
  kSteps,
  kAll,  // also of the caller: an observer that throws, a run that is given up
};

// An undo log is for one run (RunOptions::undo). Parameters that are written after the last place
// where the run may fail are not kept, and cost nothing. With updates on the CPU after all
// gradients, and UndoScope::kSteps, these are all of them. What steps of a device write is kept in
// its memory.
class UndoLog {
 public:
  UndoLog(const ExecutionPlan& plan, UndoScope scope);
  // False: a run of the plan writes nothing before its last place of failure.
  bool needed() const { return needed_; }
  // The executor calls it before it runs a step. Where it fails the step must not run.
  Status BeforeStep(const ExecutionState& state, int step) {
    return step <= last_ ? KeepOutputs(state, step) : Status();
  }
  // Puts back what a failed run has overwritten. False where not all was kept, with nothing put
  // back, or where a device does not take it.
  bool Undo(const ExecutionState& state) const;

 private:
  Status KeepOutputs(const ExecutionState& state, int step);

  int last_;  // the last step that may fail; the number of steps where it is the way out
  bool needed_ = false;
  std::map<int, Tensor> kept_;  // by parameter, each on the parameter's device
};

}  // namespace caesura

#endif  // CAESURA_CORE_EXECUTE_UNDO_LOG_H_
