// SPDX-License-Identifier: Apache-2.0
// Forward, backward and optimizer ranges, and one range a step, for a tool that shows ranges
// (Nsight Systems).
#ifndef CAESURA_CORE_PROFILE_NVTX_RANGES_H_
#define CAESURA_CORE_PROFILE_NVTX_RANGES_H_

#include <cstdint>
#include <memory>
#include <mutex>
#include <string>
#include <unordered_map>

#include "core/execute/execution_observer.h"

namespace caesura {

// Takes ranges. Ranges of a thread nest: End closes the one that Begin of the same thread opened
// last. Thread safety: both methods from any thread.
class RangeSink {
 public:
  virtual ~RangeSink() = default;
  virtual void Begin(const std::string& name, uint32_t argb) = 0;
  virtual void End() = 0;
};

inline constexpr char kNvtxLibrary[] = "libnvToolsExt.so.1";

// NVTX through its C library, loaded here. kNotFound where there is none.
Result<std::unique_ptr<RangeSink>> OpenNvtx(const std::string& library = kNvtxLibrary);

// "batch 17 forward" begins at the first step of a call to Run; "batch 17 backward" at the first
// step of a backward node, and ends the one before; "batch 17 optimizer" likewise. What is open
// ends when Run returns: at a yield, at the end, and when a step fails. So ranges are balanced on
// each thread, in whatever pieces a step is run. Thread safety: one observer may watch any number
// of states in any threads.
class PhaseRanges : public ExecutionObserver {
 public:
  // `sink` outlives this. `steps`: also a range for each step.
  explicit PhaseRanges(RangeSink& sink, bool steps = true) : sink_(sink), steps_(steps) {}

  void OnStepBegin(const ExecutionPlan& plan, const ExecutionState& state, int step) override;
  void OnStepEnd(const ExecutionPlan& plan, const ExecutionState& state, int step,
                 const Status& status) override;
  void OnLeave(const ExecutionPlan& plan, const ExecutionState& state,
               const Status& status) override;

 private:
  RangeSink& sink_;
  const bool steps_;
  std::mutex mutex_;
  std::unordered_map<const ExecutionState*, Phase> open_;
};

}  // namespace caesura

#endif  // CAESURA_CORE_PROFILE_NVTX_RANGES_H_
