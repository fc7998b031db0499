// SPDX-License-Identifier: Apache-2.0
// What a run overwrites of its parameters, kept until it is clear that the run comes to its end: a
// step that fails half way through its updates on a provider is undone, and can be done again
// elsewhere.
#ifndef CAESURA_TRAINING_WRITE_JOURNAL_H_
#define CAESURA_TRAINING_WRITE_JOURNAL_H_

#include <map>
#include <vector>

#include "core/execute/execution_observer.h"

namespace caesura {

// Attach one to each run. The CPU provider's kernels do not fail for a provider's reason: what is
// written behind the last step of any other provider (with CommitMode::kLate and updates on the
// CPU: everything) is not kept, and costs nothing.
class WriteJournal : public ExecutionObserver {
 public:
  void OnEnter(const ExecutionPlan& plan, const ExecutionState& state) override;
  void OnStepBegin(const ExecutionPlan& plan, const ExecutionState& state, int step) override;
  // Of a run that has failed: puts back what was overwritten. False, with nothing put back, where
  // not all was kept.
  bool Undo(const ExecutionState& state);

 private:
  void Keep(const ExecutionState& state, int parameter);

  int last_ = -1;                          // the last step that may fail for a provider's reason
  std::map<int, std::vector<char>> kept_;  // bytes by parameter
};

}  // namespace caesura

#endif  // CAESURA_TRAINING_WRITE_JOURNAL_H_
