// SPDX-License-Identifier: Apache-2.0
// The option --json of all commands that report something.
#ifndef CAESURA_TRAINING_COMMAND_JSON_OUTPUT_H_
#define CAESURA_TRAINING_COMMAND_JSON_OUTPUT_H_

#include <string>

#include <nlohmann/json.hpp>

#include "core/base/status.h"

namespace CLI {
class App;
}

namespace caesura::command {

// `file` becomes the option's value: a path, "-" for stdout, or empty where the option was not
// given.
void AddJsonOption(CLI::App& app, std::string* file);

// True where the user wants JSON on stdout and no other text there.
inline bool OnlyJson(const std::string& file) { return file == "-"; }

// Writes `json` where the option says; nothing where it was not given. Text that is not UTF-8 is
// written with replacement characters.
Status WriteJson(const nlohmann::json& json, const std::string& file);

}  // namespace caesura::command

#endif  // CAESURA_TRAINING_COMMAND_JSON_OUTPUT_H_
