// SPDX-License-Identifier: Apache-2.0
// Runs and steps on inputs that are made up, for commands that look at how they go.
#ifndef CAESURA_TRAINING_COMMAND_TRAIN_MADE_STEP_H_
#define CAESURA_TRAINING_COMMAND_TRAIN_MADE_STEP_H_

#include <memory>
#include <string>
#include <vector>

#include "training/command/train/train_options.h"

namespace caesura::command {

struct FeedOptions {
  std::vector<std::string> shapes, dims;  // as DimBindings takes them
  std::string inputs;                     // a file of arrays; empty: none
};

// --shape, --dim, --inputs
void AddFeedOptions(CLI::App& app, FeedOptions* options);

// The arrays of --inputs, and for all other inputs made-up values of the stated shapes: floats from
// a fixed sequence in [0, 1), everything else zero. Fails as DimBindings::Feeds does.
Result<NamedValues> MakeFeeds(const FeedOptions& options, const std::vector<Value*>& inputs);

// A session for steps of the model at `options.model`, which `model` was read from: as an exported
// step says, or as the loss, optimizer, provider and threads of the options do.
Result<std::unique_ptr<TrainingSession>> MakeStepSession(const TrainOptions& options,
                                                         const Model& model);

// The inputs that a step of the session must be given.
std::vector<Value*> StepInputs(const TrainingSession& session);

}  // namespace caesura::command

#endif  // CAESURA_TRAINING_COMMAND_TRAIN_MADE_STEP_H_
