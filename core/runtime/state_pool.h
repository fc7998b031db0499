// SPDX-License-Identifier: Apache-2.0
// States that wait for their next run, so that a run of a known plan allocates nothing. Plans share
// arenas: a run finds one that waits, whichever plan had it, and there are never more than there
// were runs at the same time.
#ifndef CAESURA_CORE_RUNTIME_STATE_POOL_H_
#define CAESURA_CORE_RUNTIME_STATE_POOL_H_

#include <algorithm>
#include <memory>
#include <mutex>
#include <utility>
#include <vector>

#include "core/execute/execution_state.h"

namespace caesura {

// Keeps a bounded number of states; the one returned longest ago goes first. Thread safety: all
// methods from any thread.
class StatePool {
 public:
  explicit StatePool(size_t capacity) : capacity_(capacity) { idle_.reserve(capacity); }

  // A state of `plan`: one that was returned, or a new one, with the arenas that were returned
  // last.
  std::unique_ptr<ExecutionState> Borrow(const std::shared_ptr<const ExecutionPlan>& plan) {
    std::lock_guard<std::mutex> lock(mutex_);
    // One with arenas if there is one, so that those of others stay where they are.
    const auto fitness = [&](const auto& state) {
      return &state->plan() != plan.get() ? 0 : state->has_arenas() ? 2 : 1;
    };
    auto best = std::max_element(idle_.begin(), idle_.end(),
                                 [&](auto& a, auto& b) { return fitness(a) < fitness(b); });
    std::unique_ptr<ExecutionState> state;
    if (best != idle_.end() && fitness(*best) > 0) {
      state = std::move(*best);
      idle_.erase(best);
    } else {
      state = std::make_unique<ExecutionState>(plan);
    }
    if (state->has_arenas()) return state;
    const auto last = std::find_if(idle_.rbegin(), idle_.rend(),
                                   [](const auto& other) { return other->has_arenas(); });
    if (last != idle_.rend()) state->TakeArenas(**last);
    return state;
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

#endif  // CAESURA_CORE_RUNTIME_STATE_POOL_H_
