// SPDX-License-Identifier: Apache-2.0
// Losses that can be put on top of a model that has none.
#ifndef CAESURA_TRAINING_STEP_LOSS_H_
#define CAESURA_TRAINING_STEP_LOSS_H_

#include <cstdint>
#include <string>

#include "core/graph/graph.h"

namespace caesura {

// The mean over the batch of a loss between a model output (`prediction`; empty: the first one) and
// a new input named `target`.
struct Loss {
  // The formula of the loss.
  enum class Kind {
    kCrossEntropy,  // scores and integer classes (ONNX SoftmaxCrossEntropyLoss, torch
                    // cross_entropy)
    kMeanSquaredError,
    kMeanAbsoluteError,
    kBinaryCrossEntropyLogits,  // torch binary_cross_entropy_with_logits
    kOutput,  // the model's own scalar output `prediction` is the loss; `target` is not used
  };
  Kind kind = Kind::kCrossEntropy;
  std::string prediction = "";
  std::string target = "target";
  int64_t ignore_index = -100;  // kCrossEntropy: targets with this class do not count
  // kCrossEntropy: the axis of the scores that holds the classes; below 0: from the end. Targets
  // have the other axes.
  int class_axis = 1;

  static Loss CrossEntropy(std::string target = "target") {
    return {Kind::kCrossEntropy, "", std::move(target)};
  }
  static Loss MeanSquaredError(std::string target = "target") {
    return {Kind::kMeanSquaredError, "", std::move(target)};
  }
  static Loss Output(std::string name) { return {Kind::kOutput, std::move(name), ""}; }
};

// Adds the loss's nodes and its target input; the result is a scalar value of the graph. Fails with
// kInvalidArgument where the model has no such output, a value has the target's name, or the scores
// have no such axis.
Result<Value*> AddLoss(Graph& graph, const Loss& loss);

// The number of elements that the loss is the mean of, as a scalar of the loss's dtype: of cross
// entropy the targets that do not have the ignored class. kInvalidArgument for a loss of the
// model's own that is no mean cross entropy, and for half types, which cannot count. The
// model's outputs must still be those of AddLoss. REQUIRES: `value` is AddLoss's, of this graph.
Result<Value*> AddLossCount(Graph& graph, const Loss& loss, const Value& value);

}  // namespace caesura

#endif  // CAESURA_TRAINING_STEP_LOSS_H_
