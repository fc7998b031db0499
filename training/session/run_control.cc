// SPDX-License-Identifier: Apache-2.0
#include "training/session/run_control.h"

#include "core/execute/run_options.h"
#include "training/session/training_session.h"

namespace caesura {
namespace {

std::atomic<std::atomic<bool>*> current_flag = nullptr;
static_assert(std::atomic<std::atomic<bool>*>::is_always_lock_free &&
                  std::atomic<bool>::is_always_lock_free,
              "a signal handler may touch nothing else");

void Suspend(int) {
  std::atomic<bool>* flag = current_flag;
  if (flag != nullptr) *flag = true;
}

}  // namespace

void RunControl::Apply(RunOptions& run) const {
  run.cancel = terminate_;
  run.suspend = suspend_;
  run.deadline = deadline_;
}

SuspendOnSignals::SuspendOnSignals(TrainingSession* session, const std::vector<int>& signals)
    : SuspendOnSignals(session->control().suspend_flag(), signals) {}

SuspendOnSignals::SuspendOnSignals(std::shared_ptr<std::atomic<bool>> flag,
                                   const std::vector<int>& signals)
    : flag_(std::move(flag)) {
  current_flag = flag_.get();
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
  current_flag = nullptr;
}

}  // namespace caesura
