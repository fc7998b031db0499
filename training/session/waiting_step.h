// SPDX-License-Identifier: Apache-2.0
// The parts of StepRuns that only a session's own sources see: a step that waits, and a step that
// may be done again.
#ifndef CAESURA_TRAINING_SESSION_WAITING_STEP_H_
#define CAESURA_TRAINING_SESSION_WAITING_STEP_H_

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "core/runtime/program.h"
#include "training/session/step_runs.h"

namespace caesura {

// A step that waits in its middle.
struct WaitingStep {
  WaitingRun run = {};  // none: no step waits
  bool is_update = false;
  std::vector<std::string> differences = {};
  std::optional<uint64_t> seed =
      std::nullopt;  // TrainingProgress::next_seed, if it was begun by it
};

// One step: what a retry needs.
struct StepRuns::Request {
  bool is_update;
  const NamedValues& feeds;
  RunRequest run;
};

}  // namespace caesura

#endif  // CAESURA_TRAINING_SESSION_WAITING_STEP_H_
