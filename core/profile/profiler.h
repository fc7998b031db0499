// SPDX-License-Identifier: Apache-2.0
// Profiler: an observer that times each step, its fences and whole runs, with sizes and thread
// statistics.
//
//   Profiler profiler;
//   RunOptions options;
//   options.observers = {&profiler};
//   options.tag = "batch 17";
//   ... run ...
//   WriteChromeTrace("trace.json", profiler.Events());   // core/profile/chrome_trace.h; opens in
//   Perfetto std::puts(profiler.Summary().c_str());
#ifndef CAESURA_CORE_PROFILE_PROFILER_H_
#define CAESURA_CORE_PROFILE_PROFILER_H_

#include <chrono>
#include <cstdint>
#include <mutex>
#include <string>
#include <thread>
#include <unordered_map>
#include <vector>

#include "core/execute/execution_observer.h"
#include "core/profile/step_sizes.h"

namespace caesura {

// The operating system's figures for the time of a step. libgomp tells nothing about its workers,
// so what they did shows in the CPU time of the process (that of other states that ran meanwhile is
// in it too).
struct ThreadStatistics {
  int threads = 1;               // that the kernel may use
  int64_t thread_cpu_ns = 0;     // CPU time of the calling thread
  int64_t process_cpu_ns = 0;    // CPU time of all threads
  int64_t context_switches = 0;  // of the calling thread, wanted or not
};

struct ProfileEvent {
  enum class Kind : uint8_t { kRun, kFenceBefore, kStep, kFenceAfter };
  Kind kind = Kind::kStep;
  std::string tag;       // of the run
  int64_t begin_ns = 0;  // since the profiler was made
  int64_t duration_ns = 0;
  int thread = 0;  // 0 for the first thread that was seen, and so on
  bool failed = false;
  // Empty for kRun.
  std::string node, op_type, provider;
  Phase phase = Phase::kForward;
  int graph_index = -1;  // the node's position in the graph
  int plan_index = -1;   // the step's position in the plan; for kRun, where the run began
  // kStep only.
  StepSizes sizes;
  ThreadStatistics statistics;
};

// Thread safety: one profiler may watch any number of states in any threads.
class Profiler : public ExecutionObserver {
 public:
  // Events beyond `max_events` are counted and dropped.
  explicit Profiler(size_t max_events = size_t{1} << 20);

  std::vector<ProfileEvent> Events() const;
  size_t dropped() const;
  void Clear();
  // A table: time, share, calls and bytes by op type, the slowest first.
  std::string Summary() const;

  void OnEnter(const ExecutionPlan& plan, const ExecutionState& state) override;
  void OnFenceBefore(const ExecutionPlan& plan, const ExecutionState& state, int step) override;
  void OnStepBegin(const ExecutionPlan& plan, const ExecutionState& state, int step) override;
  void OnStepEnd(const ExecutionPlan& plan, const ExecutionState& state, int step,
                 const Status& status) override;
  void OnFenceAfter(const ExecutionPlan& plan, const ExecutionState& state, int step) override;
  void OnLeave(const ExecutionPlan& plan, const ExecutionState& state,
               const Status& status) override;

 private:
  // The open event of one state.
  struct Running {
    std::string tag;
    int first_step = 0;
    int64_t run_ns = 0, mark_ns = 0;
    ThreadStatistics at_begin;
  };

  int64_t Now() const;
  ProfileEvent EventOf(const ExecutionPlan& plan, const Running& running, int step,
                       ProfileEvent::Kind kind) const;
  void Record(ProfileEvent event);

  const std::chrono::steady_clock::time_point origin_ = std::chrono::steady_clock::now();
  const size_t max_events_;
  mutable std::mutex mutex_;
  std::unordered_map<const ExecutionState*, Running> running_;
  std::unordered_map<std::thread::id, int> threads_;
  std::vector<ProfileEvent> events_;
  size_t dropped_ = 0;
};

// The name of a run for observers: its tag, or "step 17".
std::string RunTag(const ExecutionState& state);
// "forward", "backward", "optimizer"
const char* PhaseName(Phase phase);

}  // namespace caesura

#endif  // CAESURA_CORE_PROFILE_PROFILER_H_
