// SPDX-License-Identifier: Apache-2.0
// UndoLog keeps what a run overwrites of its parameters until it is clear that the run comes to its
// end. A step that fails in the middle of its updates on a provider is undone, and can be done
// again elsewhere.
#ifndef CAESURA_CORE_EXECUTE_UNDO_LOG_H_
#define CAESURA_CORE_EXECUTE_UNDO_LOG_H_

#include <map>
#include <vector>

#include "core/plan/execution_plan.h"

namespace caesura {

class ExecutionState;

// An undo log is for one run (RunOptions::undo). The CPU provider's kernels do not fail for a
// provider's reason: parameters that are written after the last step of any other provider are not
// kept, and cost nothing. With updates on the CPU after all gradients these are all of them.
class UndoLog {
 public:
  explicit UndoLog(const ExecutionPlan& plan);
  // The executor calls it before it runs a step.
  void BeforeStep(const ExecutionState& state, int step) {
    if (step <= last_) KeepOutputs(state, step);
  }
  // Puts back what a failed run has overwritten. False, with nothing put back, where
  // not all was kept.
  bool Undo(const ExecutionState& state) const;

 private:
  void KeepOutputs(const ExecutionState& state, int step);

  int last_;                               // the last step that may fail for a provider's reason
  std::map<int, std::vector<char>> kept_;  // bytes by parameter
};

}  // namespace caesura

#endif  // CAESURA_CORE_EXECUTE_UNDO_LOG_H_
