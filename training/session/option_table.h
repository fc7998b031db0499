// SPDX-License-Identifier: Apache-2.0
// The options of training that have a name and a plain value, as one table: name, type, default,
// another value, a sentence; and the pairs of them that do not go together. Python's sessions, the
// command `caesura train` and exported steps take these options from it, and tests try all pairs.
// SetOption and CheckConflicts (training_options.h) are made of it.
//
// The optimizer with its groups, the schedule, providers, custom ops and the communicator are no
// rows: each of them is an object that is made of several values.
#ifndef CAESURA_TRAINING_SESSION_OPTION_TABLE_H_
#define CAESURA_TRAINING_SESSION_OPTION_TABLE_H_

#include <cstdint>
#include <functional>
#include <string>
#include <variant>
#include <vector>

#include "training/session/training_options.h"

namespace caesura {

// A row of the table.
struct TrainingOption {
  std::string name;
  std::string sentence;  // of help texts and docstrings
  OptionValue other;     // than the default; for tests
  std::function<OptionValue(const TrainingOptions&)> get;
  // For SetOption, which checks the type. kInvalidArgument for a value that is out of range or that
  // no choice is named by.
  std::function<Status(const OptionValue&, TrainingOptions*)> set;
  std::vector<std::string> choices = {};  // that a text is one of; empty: any text
  bool any_bits = false;  // a negative number stands for an unsigned one with its bits

  OptionValue initial() const { return get(TrainingOptions()); }
};

// All rows, by their place in the documentation.
const std::vector<TrainingOption>& TrainingOptionTable();
// Null where there is no such option.
const TrainingOption* FindTrainingOption(const std::string& name);

// The use of an option: any value but the default, or one value.
struct OptionUse {
  std::string option;
  OptionValue example;  // a value that is such a use
  std::function<bool(const TrainingOptions&)> in;

  // "commit eager-consume", or "clip_norm"; with the option spelled so.
  std::string Text(const std::string& spelled) const;
};

// Two uses that do not go together.
struct OptionConflict {
  OptionUse one, other;
  bool among_ranks = false;                        // only where several ranks train together
  StatusCode code = StatusCode::kInvalidArgument;  // kUnsupported: it could be done, and is not
  std::string reason;
};

const std::vector<OptionConflict>& OptionConflicts();
}  // namespace caesura

#endif  // CAESURA_TRAINING_SESSION_OPTION_TABLE_H_
