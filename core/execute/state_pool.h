// SPDX-License-Identifier: Apache-2.0
// States that wait for their next run, so that a run of a known plan allocates no arena.
#ifndef CAESURA_CORE_EXECUTE_STATE_POOL_H_
#define CAESURA_CORE_EXECUTE_STATE_POOL_H_

#include <memory>
#include <mutex>
#include <utility>
#include <vector>

#include "core/execute/execution_state.h"

namespace caesura {

// Keeps a bounded number of states; the one returned longest ago goes first. Thread safety: all methods from any thread.
class StatePool {
 public:
  explicit StatePool(size_t capacity) : capacity_(capacity) { idle_.reserve(capacity); }

  // A state of `plan`: one that was returned, or a new one.
  std::unique_ptr<ExecutionState> Borrow(const std::shared_ptr<const ExecutionPlan>& plan) {
    std::lock_guard<std::mutex> lock(mutex_);
    for (auto it = idle_.begin(); it != idle_.end(); ++it) {
      if (&(*it)->plan() != plan.get()) continue;
      std::unique_ptr<ExecutionState> state = std::move(*it);
      idle_.erase(it);
      return state;
    }
    return std::make_unique<ExecutionState>(plan);
  }
  // Cancels what the state holds and keeps it. Needs no memory.
  void Return(std::unique_ptr<ExecutionState> state) {
    state->Cancel();
    std::lock_guard<std::mutex> lock(mutex_);
    if (idle_.size() >= capacity_) idle_.erase(idle_.begin());
    idle_.push_back(std::move(state));
  }

 private:
  const size_t capacity_;
  std::mutex mutex_;
  std::vector<std::unique_ptr<ExecutionState>> idle_;
};

}  // namespace caesura

#endif  // CAESURA_CORE_EXECUTE_STATE_POOL_H_
