// SPDX-License-Identifier: Apache-2.0
// A training step as a plain ONNX file, which any runtime of ONNX runs:
// docs/guides/export_training.md.
#ifndef CAESURA_TRAINING_SESSION_EXPORT_TRAINING_H_
#define CAESURA_TRAINING_SESSION_EXPORT_TRAINING_H_

#include <cstdint>
#include <string>

#include "core/base/status.h"

namespace caesura {

struct SessionParts;  // session_files.h

// The part of the training that the file computes.
enum class TrainingPart : uint8_t {
  kStep,        // a step that updates
  kAccumulate,  // a micro-step that only accumulates its gradients
  kGradients,   // the loss and the gradients; what follows them is the reader's
};

// A file: what it computes, and in which operators.
struct TrainingExport {
  TrainingPart part = TrainingPart::kStep;
  // The version of ONNX's operators (LowerOpset), from kOldestOpset on; the IR version is the one
  // that came with it. 0: the lowest from 17 on that has all nodes as they are, with IR 10 at
  // least.
  int opset = 0;
};
inline constexpr int kOldestOpset = 13;

// Outputs of the file: the loss; with clip_norm the gradients' norm before clipping (float64);
// where the loss is scaled what gradients were multiplied with (float64; not finite: nothing was
// updated); the gradient of the parameter NAME; and the new value of the input NAME.
inline constexpr char kLossOutput[] = "caesura.loss";
inline constexpr char kGradientNormOutput[] = "caesura.gradient_norm";
inline constexpr char kGradientScaleOutput[] = "caesura.gradient_scale";
inline constexpr char kGradientPrefix[] = "gradient.";
inline constexpr char kUpdatedPrefix[] = "updated.";

// Writes the file as TrainingSession::ExportTraining does.
Status ExportTraining(const SessionParts& from, const std::string& path,
                      const TrainingExport& what);

}  // namespace caesura

#endif  // CAESURA_TRAINING_SESSION_EXPORT_TRAINING_H_
