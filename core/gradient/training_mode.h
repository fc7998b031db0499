// SPDX-License-Identifier: Apache-2.0
// Switches a model to training: exporters leave BatchNormalization and Dropout in evaluation mode.
// For evaluation and export take the model as it was, with the trained initializers.
#ifndef CAESURA_CORE_GRADIENT_TRAINING_MODE_H_
#define CAESURA_CORE_GRADIENT_TRAINING_MODE_H_

#include <string>
#include <unordered_set>
#include <vector>

#include "core/base/status.h"
#include "core/graph/graph.h"

namespace caesura {

// A running statistic, or another buffer, that a training step changes: `value` is to be written to
// the initializer `target`.
struct StatisticUpdate {
  Value* target;
  Value* value;
};

struct TrainingModeOptions {
  // Names of BatchNormalization and Dropout nodes that stay as they are (frozen statistics, no
  // dropout).
  std::unordered_set<std::string> keep_evaluation = {};
  // Running variances are updated with n / (n - 1) times the batch's variance, as PyTorch's are;
  // otherwise with the variance itself, as ONNX has it.
  bool unbiased_statistics = false;
};

// BatchNormalization becomes BatchNormalizationTraining: normalized by the batch's own statistics,
// which running ones are updated with. Dropout drops, but where a graph input or a computed value
// decides whether it does. Nodes in bodies of If, Loop and Scan too; a
// BatchNormalization there whose statistics are initializers is kUnsupported, since a body cannot
// write them back. So is either op in a model that holds gradients of its own (gradient_model.h),
// whose nodes count as forward ones. Values keep their names and identity; two nodes that share
// statistics update them in turn. An Assign of the model's own (core/ops) is an update, too,
// of any initializer; whoever reads its output reads the new value.
Result<std::vector<StatisticUpdate>> SwitchToTraining(Graph& graph,
                                                      const TrainingModeOptions& options = {});

// Changes the graph for evaluation: BatchNormalization takes the running statistics (and hands them
// on unchanged where somebody reads the new ones), Dropout drops nothing unless a graph input or a
// computed value asks for it, and nothing is assigned.
Status SwitchToEvaluation(Graph& graph);
// WithGradient nodes become Identities, in bodies too.
void DropOwnGradients(Graph& graph);

// The initializers that are running statistics of BatchNormalization nodes or that the model
// assigns to: not to be trained by gradients.
std::unordered_set<const Value*> RunningStatistics(const Graph& graph);

}  // namespace caesura

#endif  // CAESURA_CORE_GRADIENT_TRAINING_MODE_H_
