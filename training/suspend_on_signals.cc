// SPDX-License-Identifier: Apache-2.0
#include "training/suspend_on_signals.h"

#include <atomic>

namespace caesura {
namespace {

std::atomic<TrainingSession*> suspended_session = nullptr;
static_assert(std::atomic<TrainingSession*>::is_always_lock_free &&
                  std::atomic<bool>::is_always_lock_free,
              "a signal handler may touch nothing else");

void Suspend(int) {
  TrainingSession* session = suspended_session;
  if (session != nullptr) session->set_suspend(true);
}

}  // namespace

SuspendOnSignals::SuspendOnSignals(TrainingSession* session, const std::vector<int>& signals) {
  suspended_session = session;
  struct sigaction action = {};
  action.sa_handler = Suspend;
  action.sa_flags = SA_RESTART;
  sigemptyset(&action.sa_mask);
  for (const int signal : signals) {
    struct sigaction before = {};
    if (sigaction(signal, &action, &before) == 0) before_.emplace_back(signal, before);
  }
}

SuspendOnSignals::~SuspendOnSignals() {
  for (const auto& [signal, before] : before_) sigaction(signal, &before, nullptr);
  suspended_session = nullptr;
}

}  // namespace caesura
