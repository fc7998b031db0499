// SPDX-License-Identifier: Apache-2.0
#ifndef CAESURA_TRAINING_STEP_PARAMETER_SHARD_H_
#define CAESURA_TRAINING_STEP_PARAMETER_SHARD_H_

#include <string>
#include <vector>

#include "core/distributed/bucket_layout.h"

namespace caesura {

// A bucket of parameters whose optimizer state is divided among the ranks. Each rank has its part
// of a state as one tensor of one dimension, "optimizer.exp_avg.NAME" for the bucket's name.
struct ParameterShard {
  std::string name;
  std::vector<std::string> members;  // parameters, in the order of the layout
  std::vector<std::string> states;   // "optimizer.exp_avg", in the order of the ParameterSet
  DType dtype;
  BucketLayout layout;

  bool operator==(const ParameterShard&) const = default;
};

}  // namespace caesura

#endif  // CAESURA_TRAINING_STEP_PARAMETER_SHARD_H_
