// SPDX-License-Identifier: Apache-2.0
// Concrete shapes for a model's inputs, from what the user says on the command line.
#ifndef CAESURA_TRAINING_COMMAND_DIM_BINDINGS_H_
#define CAESURA_TRAINING_COMMAND_DIM_BINDINGS_H_

#include <map>
#include <string>
#include <vector>

#include "core/plan/execution_plan.h"

namespace caesura::command {

class DimBindings {
 public:
  // `shapes` are "input=1,3,224,224" ("input=" is a scalar), `dims` are "symbol=32".
  static Result<DimBindings> Parse(const std::vector<std::string>& shapes,
                                   const std::vector<std::string>& dims);

  // The facts about each input. A shape given for one input binds its symbols for the others.
  // Fails listing every dim that nothing says, every shape that does not fit, and shapes of inputs
  // that are not there.
  Result<std::vector<FeedSpec>> Feeds(const std::vector<Value*>& inputs) const;

 private:
  std::map<std::string, std::vector<int64_t>> shapes_;
  std::map<std::string, int64_t> dims_;
};

}  // namespace caesura::command

#endif  // CAESURA_TRAINING_COMMAND_DIM_BINDINGS_H_
