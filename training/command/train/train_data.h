// SPDX-License-Identifier: Apache-2.0
// From the files that the user names to datasets whose arrays are named after the inputs that they
// feed.
#ifndef CAESURA_TRAINING_COMMAND_TRAIN_TRAIN_DATA_H_
#define CAESURA_TRAINING_COMMAND_TRAIN_TRAIN_DATA_H_

#include <memory>
#include <string>

#include "core/graph/graph.h"
#include "training/command/train/train_options.h"
#include "training/data/dataset.h"

namespace caesura::command {

struct TrainData {
  std::shared_ptr<const Dataset> train;
  std::shared_ptr<const Dataset> validation;  // null: none
  std::shared_ptr<const TextCorpus> text;     // null: the data are arrays
};

// True if --data names texts.
bool IsText(const TrainOptions& options);

// Arrays are converted to the dtypes of the inputs. Fails with kInvalidArgument listing every array
// that is missing.
Result<TrainData> LoadTrainData(const TrainOptions& options, const Model& model);

}  // namespace caesura::command

#endif  // CAESURA_TRAINING_COMMAND_TRAIN_TRAIN_DATA_H_
