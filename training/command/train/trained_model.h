// SPDX-License-Identifier: Apache-2.0
// Models for commands that run them but do not train them.
#ifndef CAESURA_TRAINING_COMMAND_TRAIN_TRAINED_MODEL_H_
#define CAESURA_TRAINING_COMMAND_TRAIN_TRAINED_MODEL_H_

#include <memory>
#include <string>
#include <vector>

#include "core/session/session.h"
#include "training/command/train/train_options.h"

namespace caesura::command {

// The ONNX model at `path`, or the model of the exported step in the folder `path` with the state
// that lies beside it; in evaluation mode. A `checkpoint` that is not empty replaces the
// parameters. Fails, listing all of them, where parameters of the checkpoint do not fit the
// model's.
Result<Model> ReadTrainedModel(const std::string& path, const std::string& checkpoint);

// The inputs that a run must be given: those without an initializer.
std::vector<Value*> RequiredInputs(const Model& model);

// The model made ready to run, on the provider and threads of the options.
Result<std::unique_ptr<Session>> MakeSession(Model model, const TrainOptions& options);

}  // namespace caesura::command

#endif  // CAESURA_TRAINING_COMMAND_TRAIN_TRAINED_MODEL_H_
