// SPDX-License-Identifier: Apache-2.0
// The values of a model that are trained: those that the user names, or those that gradients reach.
#ifndef CAESURA_TRAINING_STEP_TRAINABLE_H_
#define CAESURA_TRAINING_STEP_TRAINABLE_H_

#include <string>
#include <vector>

#include "core/graph/graph.h"
#include "training/step/step_options.h"

namespace caesura {

// The names that the options select, in the model's order. Gradients begin at `loss`, or where it
// is null at the model's outputs; without a loss there may be no name. Fails listing all names that
// the model does not have, each with the nearest ones, and where no gradient reaches what is
// selected, naming the nodes that stop it. Warns of what is selected and has no gradient, of
// weights that cannot be trained where they are, and of FoldedInitializers
// (core/onnx/model_reader.h). The model's types must have been inferred.
Result<std::vector<std::string>> TrainableNames(Model& model, const TrainableOptions& options,
                                                const Loss* loss = nullptr);

// The names of all initializers, in the graph's order.
std::vector<std::string> InitializerNames(const Graph& graph);

}  // namespace caesura

#endif  // CAESURA_TRAINING_STEP_TRAINABLE_H_
