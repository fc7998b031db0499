// SPDX-License-Identifier: Apache-2.0
// MemoryProfile: what is alive at each step of a run: the plan's arena curve and what was allocated
// at run time. A run that fails leaves a record too, with the values that were alive.
#ifndef CAESURA_CORE_PROFILE_MEMORY_PROFILE_H_
#define CAESURA_CORE_PROFILE_MEMORY_PROFILE_H_

#include <deque>
#include <mutex>
#include <string>
#include <unordered_map>
#include <vector>

#include "core/execute/execution_observer.h"
#include "core/execute/execution_state.h"

namespace caesura {

struct MemorySample {
  int step = 0;
  std::string node, op_type;
  size_t arena_bytes = 0;    // alive in the arena, planned
  size_t fetch_bytes = 0;    // buffers that will be handed out
  size_t dynamic_bytes = 0;  // allocated at run time: outputs of dynamic steps and the like
  size_t cached_bytes = 0;   // in the value cache
  size_t total() const { return arena_bytes + fetch_bytes + dynamic_bytes + cached_bytes; }
};

struct LiveValue {
  std::string name, type, kind;  // "h", "float32[4, 3]", "arena"
  size_t bytes = 0;
  int first_step = 0, last_step = 0;
};

struct MemoryRecord {
  std::string tag;
  bool failed = false;
  std::string error;
  size_t arena_bytes = 0;  // the arena itself, gaps included
  size_t feed_bytes = 0, parameter_bytes = 0, constant_bytes = 0;
  std::vector<MemorySample> samples;  // one a step, in order; over all calls that the run took
  // The largest values alive at the peak, or, of a run that failed, at the step that failed.
  std::vector<LiveValue> largest;
  // Index of the sample with the largest total; -1 without samples.
  int Peak() const;
};

// The forecast before the first step: the arena curve and the largest values at its peak, nothing
// dynamic.
MemoryRecord PlannedMemory(const ExecutionPlan& plan);

// {"runs": [...]}: the fields above by name.
std::string MemoryJson(const std::vector<MemoryRecord>& records);

// Thread safety: one profile may watch any number of states in any threads.
class MemoryProfile : public ExecutionObserver {
 public:
  // Keeps the last `max_records` runs.
  explicit MemoryProfile(size_t max_records = 8) : max_records_(max_records) {}

  // Records of runs that have finished or failed.
  std::vector<MemoryRecord> Records() const;
  void Clear();

  void OnEnter(const ExecutionPlan& plan, const ExecutionState& state) override;
  void OnStepEnd(const ExecutionPlan& plan, const ExecutionState& state, int step,
                 const Status& status) override;
  void OnLeave(const ExecutionPlan& plan, const ExecutionState& state,
               const Status& status) override;

 private:
  struct Running {
    const ExecutionPlan* plan = nullptr;
    MemoryRecord record;
    std::vector<MemorySample> planned;
    std::vector<size_t> dynamic;  // by value id: bytes that are held
  };

  const size_t max_records_;
  mutable std::mutex mutex_;
  std::unordered_map<const ExecutionState*, Running> running_;
  std::deque<MemoryRecord> records_;
};

}  // namespace caesura

#endif  // CAESURA_CORE_PROFILE_MEMORY_PROFILE_H_
