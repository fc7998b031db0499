// SPDX-License-Identifier: Apache-2.0
// RunControl: stops the steps of a session from outside: at once, at a time, or at a place.
#ifndef CAESURA_TRAINING_SESSION_RUN_CONTROL_H_
#define CAESURA_TRAINING_SESSION_RUN_CONTROL_H_

#include <atomic>
#include <chrono>
#include <climits>
#include <csignal>
#include <memory>
#include <optional>
#include <utility>
#include <vector>

namespace caesura {

struct RunOptions;      // core/execute/run_options.h
class TrainingSession;  // training_session.h

// Thread safety: set_suspend, set_terminate and the flags from any thread and from signal handlers;
// all else as the session.
class RunControl {
 public:
  // True suspends the step that runs now, and each one from here on, before its next node. Step,
  // Accumulate or ResumeStep then fails with kSuspended, and the step waits: nothing is lost.
  // False: steps run again.
  void set_suspend(bool suspend) {
    *suspend_ = suspend;
    if (!suspend) rank_asked_ = false;
  }
  // The flag itself. Sessions that share one are suspended together; a step that waits already goes
  // by the flag that it was begun with.
  const std::shared_ptr<std::atomic<bool>>& suspend_flag() const { return suspend_; }
  void ShareSuspendFlag(std::shared_ptr<std::atomic<bool>> flag) { suspend_ = std::move(flag); }
  // Suspends steps likewise from this time on; nothing: no more. With other ranks the deadline of
  // one suspends all, and each of them is told that steps run again: that one by nothing here, the
  // others by set_suspend(false).
  void set_deadline(std::optional<std::chrono::steady_clock::time_point> deadline) {
    if (deadline_ && !deadline && !*suspend_) rank_asked_ = false;
    deadline_ = deadline;
  }
  // Suspends the next step, or the rest of the one that waits, before step `i` of its plan
  // (TrainingSession::StepPlan).
  void SuspendAt(int i) { suspend_at_ = i; }
  // True ends the step, evaluation or prediction that runs now, and each one from here on, with
  // kCancelled, which changes nothing; but not a step that has begun to update parameters. False:
  // calls run again.
  void set_terminate(bool terminate) { *terminate_ = terminate; }
  bool terminate() const { return *terminate_; }

  // --- for the session's runs ---
  // Gives the run its flags and its deadline.
  void Apply(RunOptions& run) const;
  const std::optional<std::chrono::steady_clock::time_point>& deadline() const { return deadline_; }
  // The place of SuspendAt, which is valid once; INT_MAX: none.
  int TakeSuspendAt() { return std::exchange(suspend_at_, INT_MAX); }
  // Some rank was asked to suspend: no step begins on any.
  void set_rank_asked(bool asked) { rank_asked_ = asked; }
  bool rank_asked() const { return rank_asked_; }

 private:
  const std::shared_ptr<std::atomic<bool>> terminate_ = std::make_shared<std::atomic<bool>>(false);
  std::shared_ptr<std::atomic<bool>> suspend_ = std::make_shared<std::atomic<bool>>(false);
  std::optional<std::chrono::steady_clock::time_point> deadline_;
  int suspend_at_ = INT_MAX;
  std::atomic<bool> rank_asked_ = false;
};

// Signals that suspend a session's steps: what a batch scheduler sends before it takes the machine
// away.
//
//   SuspendOnSignals guard(session.get(), {SIGTERM, SIGUSR1});
//   auto loss = session->Step(batch);
//   if (loss.status().code() == StatusCode::kSuspended) session->Save("run.ckpt");
//
// From its creation to its end each of `signals` sets the flag (RunControl::suspend_flag),
// whatever thread receives it; then the handlers from before are back. One at a time in a process.
class SuspendOnSignals {
 public:
  SuspendOnSignals(std::shared_ptr<std::atomic<bool>> flag, const std::vector<int>& signals);
  SuspendOnSignals(TrainingSession* session, const std::vector<int>& signals);
  ~SuspendOnSignals();
  SuspendOnSignals(const SuspendOnSignals&) = delete;
  SuspendOnSignals& operator=(const SuspendOnSignals&) = delete;

 private:
  const std::shared_ptr<std::atomic<bool>> flag_;
  std::vector<std::pair<int, struct sigaction>> before_;
};

}  // namespace caesura

#endif  // CAESURA_TRAINING_SESSION_RUN_CONTROL_H_
