// SPDX-License-Identifier: Apache-2.0
// Signals that suspend a session's steps: what a batch scheduler sends before it takes the machine
// away.
//
//   SuspendOnSignals guard(session.get(), {SIGTERM, SIGUSR1});
//   auto loss = session->Step(batch);
//   if (loss.status().code() == StatusCode::kSuspended) session->Save("run.ckpt");
#ifndef CAESURA_TRAINING_SUSPEND_ON_SIGNALS_H_
#define CAESURA_TRAINING_SUSPEND_ON_SIGNALS_H_

#include <csignal>
#include <utility>
#include <vector>

#include "training/training_session.h"

namespace caesura {

// From its creation to its end each of `signals` sets the session's suspend flag
// (TrainingSession::set_suspend), whatever thread receives it; then the handlers from before are
// back. One at a time in a process. The session outlives it.
class SuspendOnSignals {
 public:
  SuspendOnSignals(TrainingSession* session, const std::vector<int>& signals);
  ~SuspendOnSignals();
  SuspendOnSignals(const SuspendOnSignals&) = delete;
  SuspendOnSignals& operator=(const SuspendOnSignals&) = delete;

 private:
  std::vector<std::pair<int, struct sigaction>> before_;
};

}  // namespace caesura

#endif  // CAESURA_TRAINING_SUSPEND_ON_SIGNALS_H_
