// SPDX-License-Identifier: Apache-2.0
// The checkpoints of a training session: written from its parts, read back into them.
#ifndef CAESURA_TRAINING_SESSION_SESSION_FILES_H_
#define CAESURA_TRAINING_SESSION_SESSION_FILES_H_

#include <map>
#include <string>

#include "training/files/checkpoint.h"
#include "training/session/rank_group.h"
#include "training/session/step_runs.h"

namespace caesura {

// The parts of one session that a checkpoint holds.
struct SessionParts {
  SessionParameters& parameters;
  TrainingProgress& progress;
  RankGroup& ranks;
  StepRuns& runs;
};

// Writes a checkpoint as TrainingSession::Save does. Changes nothing.
Status SaveSession(const SessionParts& from, const std::string& path,
                   std::map<std::string, Checkpoint::Property> properties);
// Reads a checkpoint as TrainingSession::Restore does.
Result<std::map<std::string, Checkpoint::Property>> RestoreSession(const SessionParts& into,
                                                                   const std::string& path);

}  // namespace caesura

#endif  // CAESURA_TRAINING_SESSION_SESSION_FILES_H_
