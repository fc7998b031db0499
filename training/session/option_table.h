// SPDX-License-Identifier: Apache-2.0
// The options of training that have a name and a plain value, as one table: name, type, default,
// another value, and a sentence. Python's sessions are opened by it, and tests try its pairs.
//
//   TrainingOptions options;
//   RETURN_IF_ERROR(SetOption("clip_norm", 1.0, &options));
#ifndef CAESURA_TRAINING_SESSION_OPTION_TABLE_H_
#define CAESURA_TRAINING_SESSION_OPTION_TABLE_H_

#include <cstdint>
#include <functional>
#include <string>
#include <variant>
#include <vector>

#include "training/session/training_options.h"

namespace caesura {

// The value of an option. Which of these it is, is the option's type.
using OptionValue = std::variant<bool, int64_t, double, std::string, std::vector<std::string>>;

// A row of the table.
struct TrainingOption {
  std::string name;
  std::string sentence;
  OptionValue other;  // than the default; for tests
  std::function<OptionValue(const TrainingOptions&)> get;
  // For SetOption, which checks the type. kInvalidArgument for a value that is out of range or that
  // no choice is named by.
  std::function<Status(const OptionValue&, TrainingOptions*)> set;

  OptionValue initial() const { return get(TrainingOptions()); }
};

// All rows, by their place in the documentation.
const std::vector<TrainingOption>& TrainingOptionTable();
// Null where there is no such option.
const TrainingOption* FindTrainingOption(const std::string& name);
// kNotFound for a name that is none; kInvalidArgument for a value of another type, naming both
// types, and as the row says.
Status SetOption(const std::string& name, const OptionValue& value, TrainingOptions* options);

}  // namespace caesura

#endif  // CAESURA_TRAINING_SESSION_OPTION_TABLE_H_
