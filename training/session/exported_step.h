// SPDX-License-Identifier: Apache-2.0
// A training step on disk, as CompiledStep.export of Python writes it: a folder with
//   model.onnx          the forward, whose output "loss" is trained; its metadata name the
//   optimizer state.safetensors   a checkpoint: parameters, optimizer state, counters
//
//   auto session = OpenStep("step").value();
//   double loss = session->Step({{"input_ids", ids}, {"labels", labels}}).value();
//   session->Save("step/state.safetensors");   // read back by caesura.load
#ifndef CAESURA_TRAINING_SESSION_EXPORTED_STEP_H_
#define CAESURA_TRAINING_SESSION_EXPORTED_STEP_H_

#include <memory>
#include <string>
#include <vector>

#include "training/session/training_session.h"

namespace caesura {

inline constexpr char kStepMetadata[] =
    "caesura.step";  // key in the model's metadata; a JSON object

// True if `path` is a folder that holds a step.
Result<bool> IsExportedStep(const std::string& path);
// The paths of the model and of the checkpoint in such a folder.
std::string ExportedModelPath(const std::string& folder);
std::string ExportedStatePath(const std::string& folder);

// The training options (option_table.h) that are entries of the metadata by their names. The others
// are "loss", the output that is the loss, "optimizer", its "coefficients", and "groups".
const std::vector<std::string>& StepEntries();

// Loss, optimizer, groups, clipping and accumulation that the model was exported with. Fails with
// kNotFound when it has no such metadata, with kInvalidModel, naming the entry, when they are not
// as they should be.
Result<StepOptions> ReadStepOptions(const Model& model);

// The session, where it was when it was exported or saved last. `options.step` is replaced by the
// folder's own.
Result<std::unique_ptr<TrainingSession>> OpenStep(const std::string& folder,
                                                  TrainingOptions options = {});

}  // namespace caesura

#endif  // CAESURA_TRAINING_SESSION_EXPORTED_STEP_H_
