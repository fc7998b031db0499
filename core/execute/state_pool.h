// SPDX-License-Identifier: Apache-2.0
// States that wait for their next run, so that a run of a known plan allocates no arena.
#ifndef CAESURA_CORE_EXECUTE_STATE_POOL_H_
#define CAESURA_CORE_EXECUTE_STATE_POOL_H_

#include <algorithm>
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

  // A state of `plan`: one that was returned, or a new one; where the pool is full, with the memory of another plan's.
  std::unique_ptr<ExecutionState> Borrow(const std::shared_ptr<const ExecutionPlan>& plan) {
    std::lock_guard<std::mutex> lock(mutex_);
    const auto of_plan = [&](const auto& state) { return &state->plan() == plan.get(); };
    auto it = std::find_if(idle_.begin(), idle_.end(), of_plan);
    if (it == idle_.end() && idle_.size() < capacity_) return std::make_unique<ExecutionState>(plan);
    std::unique_ptr<ExecutionState> state = std::move(it == idle_.end() ? idle_.front() : *it);
    idle_.erase(it == idle_.end() ? idle_.begin() : it);
    return of_plan(state) ? std::move(state) : std::make_unique<ExecutionState>(plan, std::move(*state));
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
