// SPDX-License-Identifier: Apache-2.0
// Puts a loss on top of a model that has none.
#ifndef CAESURA_TRAINING_STEP_LOSS_H_
#define CAESURA_TRAINING_STEP_LOSS_H_

#include <string>
#include <vector>

#include "core/graph/graph.h"
#include "training/step/step_options.h"

namespace caesura {

// One term of a loss.
struct LossTerm {
  std::string prediction, target;
  double weight = 1;
};

// The first term, then those of Loss::also. kInvalidArgument for text of another form.
Result<std::vector<LossTerm>> LossTerms(const Loss& loss);

// Adds the loss's nodes and its target inputs; the result is a scalar value of the graph. Fails
// with kInvalidArgument where the model has no such output, a value has a target's name, or the
// scores have no such axis.
Result<Value*> AddLoss(Graph& graph, const Loss& loss);

// The number of elements that the loss is the mean of, as a scalar of the loss's dtype: of cross
// entropy the targets that do not have the ignored class. kInvalidArgument for a loss of the
// model's own that is no mean cross entropy, and for half types, which cannot count. The
// model's outputs must still be those of AddLoss. REQUIRES: `value` is AddLoss's, of this graph,
// and a loss of one term.
Result<Value*> AddLossCount(Graph& graph, const Loss& loss, const Value& value);

}  // namespace caesura

#endif  // CAESURA_TRAINING_STEP_LOSS_H_
