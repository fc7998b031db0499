// SPDX-License-Identifier: Apache-2.0
// Signals that suspend a session's steps: what a batch scheduler sends before it takes the machine
// away.
//
//   SuspendOnSignals guard(session.get(), {SIGTERM, SIGUSR1});
//   auto loss = session->Step(batch);
//   if (loss.status().code() == StatusCode::kSuspended) session->Save("run.ckpt");
#ifndef CAESURA_TRAINING_SESSION_SUSPEND_ON_SIGNALS_H_
#define CAESURA_TRAINING_SESSION_SUSPEND_ON_SIGNALS_H_

#include <atomic>
#include <csignal>
#include <memory>
#include <utility>
#include <vector>

#include "training/session/training_session.h"

namespace caesura {

// From its creation to its end each of `signals` sets the flag (RunControl::suspend_flag),
// whatever thread receives it; then the handlers from before are back. One at a time in a process.
class SuspendOnSignals {
 public:
  SuspendOnSignals(std::shared_ptr<std::atomic<bool>> flag, const std::vector<int>& signals);
  SuspendOnSignals(TrainingSession* session, const std::vector<int>& signals)
      : SuspendOnSignals(session->control().suspend_flag(), signals) {}
  ~SuspendOnSignals();
  SuspendOnSignals(const SuspendOnSignals&) = delete;
  SuspendOnSignals& operator=(const SuspendOnSignals&) = delete;

 private:
  const std::shared_ptr<std::atomic<bool>> flag_;
  std::vector<std::pair<int, struct sigaction>> before_;
};

}  // namespace caesura

#endif  // CAESURA_TRAINING_SESSION_SUSPEND_ON_SIGNALS_H_
