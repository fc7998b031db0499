// SPDX-License-Identifier: Apache-2.0
// Models for commands that run them but do not train them.
#ifndef CAESURA_TRAINING_COMMAND_TRAINED_MODEL_H_
#define CAESURA_TRAINING_COMMAND_TRAINED_MODEL_H_

#include <string>

#include "core/graph/graph.h"

namespace caesura::command {

// The ONNX model at `path`, or the model of the exported step in the folder `path` with the state that lies beside it; in
// evaluation mode. A `checkpoint` that is not empty replaces the parameters. Fails, listing all of them, where parameters of
// the checkpoint do not fit the model's.
Result<Model> ReadTrainedModel(const std::string& path, const std::string& checkpoint);

}  // namespace caesura::command

#endif  // CAESURA_TRAINING_COMMAND_TRAINED_MODEL_H_
