// SPDX-License-Identifier: Apache-2.0
// RunRecorder: an observer that keeps whole runs: each step of the plan with its time and its place
// in the user's source, and the memory that was alive. A report page (training/report) is made of
// them.
//
//   RunRecorder recorder;
//   session->Step(feeds, {&recorder});
//   for (const RecordedRun& run : recorder.Runs()) { ... }
#ifndef CAESURA_CORE_PROFILE_RUN_RECORDER_H_
#define CAESURA_CORE_PROFILE_RUN_RECORDER_H_

#include <chrono>
#include <cstdint>
#include <memory>
#include <mutex>
#include <string>
#include <unordered_map>
#include <vector>

#include "core/execute/execution_observer.h"
#include "core/profile/memory_profile.h"
#include "core/profile/profiler.h"

namespace caesura {

// A node of a graph that was fused into another one.
struct FusedPart {
  std::string op_type, node, source;
};

struct RecordedStep {
  PlanStep::Kind kind = PlanStep::Kind::kCompute;
  std::string op_type, node, provider;
  Phase phase = Phase::kForward;
  std::string source;                        // as Node::source
  std::vector<FusedPart> parts;              // of a fused node, in their order; empty for others
  std::vector<std::string> inputs, outputs;  // "h float32[4, 3]"; absent ones are left out
  bool makes_shapes = false;  // all outputs are integers or bools, of at most 64 elements
  // The start of the run's step. One that was not reached has a negative `begin_ns`.
  int64_t begin_ns = -1;  // since the recorder was made
  int64_t duration_ns = 0;
  StepSizes sizes;
  ThreadStatistics statistics;
};

struct RecordedRun {
  std::string tag;
  bool failed = false;
  std::string error;
  int64_t begin_ns = 0;             // since the recorder was made
  int64_t duration_ns = 0;          // without the time that the run waited at a yield
  int threads = 1;                  // to a kernel
  std::vector<RecordedStep> steps;  // those of the plan, in its order
  MemoryRecord memory;
};

// Thread safety: one recorder may watch any number of states in any threads.
class RunRecorder : public ExecutionObserver {
 public:
  // Keeps the first `max_runs` runs; later ones are counted and dropped.
  explicit RunRecorder(size_t max_runs = 256) : max_runs_(max_runs) {}

  // Runs that have ended, and the parts of those that wait at a yield; in the order in which they
  // began.
  std::vector<RecordedRun> Runs() const;
  size_t dropped() const;

  void OnEnter(const ExecutionPlan& plan, const ExecutionState& state) override;
  void OnFenceBefore(const ExecutionPlan& plan, const ExecutionState& state, int step) override;
  void OnStepBegin(const ExecutionPlan& plan, const ExecutionState& state, int step) override;
  void OnStepEnd(const ExecutionPlan& plan, const ExecutionState& state, int step,
                 const Status& status) override;
  void OnLeave(const ExecutionPlan& plan, const ExecutionState& state,
               const Status& status) override;

 private:
  struct Running;
  // The run that this state is in; null for one that is dropped.
  std::shared_ptr<Running> Find(const ExecutionState& state) const;

  const std::chrono::steady_clock::time_point origin_ = std::chrono::steady_clock::now();
  const size_t max_runs_;
  mutable std::mutex mutex_;
  std::unordered_map<const ExecutionState*, std::shared_ptr<Running>> running_;
  std::vector<std::shared_ptr<Running>> runs_;
  size_t dropped_ = 0;
};

// Has the runs of all programs (program.h) in this process watched by `recorder` as well,
// for callers who do not start these runs themselves. Fails with kInvalidArgument while another one
// records. Thread safety: any thread.
Status BeginRecording(std::shared_ptr<RunRecorder> recorder);
void EndRecording();
// The recorder between the two; null otherwise. Whoever runs holds it until the run has ended.
std::shared_ptr<RunRecorder> ProcessRecorder();

}  // namespace caesura

#endif  // CAESURA_CORE_PROFILE_RUN_RECORDER_H_
