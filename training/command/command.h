// SPDX-License-Identifier: Apache-2.0
// The parts of the `caesura` command. Each adds its subcommand and options to the parser, and tells
// `run` what to do when the user has chosen it: a function that returns the exit code.
#ifndef CAESURA_TRAINING_COMMAND_COMMAND_H_
#define CAESURA_TRAINING_COMMAND_COMMAND_H_

#include <functional>
#include <string>

#include <nlohmann/json_fwd.hpp>

#include "core/base/status.h"

namespace CLI {
class App;
}

namespace caesura::command {

// kStopped: by a signal; what was under way is saved where the user has asked for it.
enum ExitCode { kDone = 0, kFailed = 1, kUsage = 2, kStopped = 3 };

using RunFunction = std::function<int()>;

void AddTrain(CLI::App& app, RunFunction* run);
void AddEvaluate(CLI::App& app, RunFunction* run);
void AddPredict(CLI::App& app, RunFunction* run);
void AddInspect(CLI::App& app, RunFunction* run);
void AddBench(CLI::App& app, RunFunction* run);
void AddReplay(CLI::App& app, RunFunction* run);
void AddReport(CLI::App& app, RunFunction* run);
void AddConformance(CLI::App& app, RunFunction* run);
void AddConvert(CLI::App& app, RunFunction* run);
void AddWrapModel(CLI::App& app, RunFunction* run);
void AddGradient(CLI::App& app, RunFunction* run);
void AddLora(CLI::App& app, RunFunction* run);
void AddEnv(CLI::App& app, RunFunction* run);
void AddCache(CLI::App& app, RunFunction* run);

// The text of `caesura --version`.
std::string VersionText();

// "caesura: MESSAGE" on stderr; returns kFailed, or kStopped for kCancelled.
int Report(const Status& status);

// kDone, or what Report(status) returns.
inline int ExitCodeOf(const Status& status) { return status.ok() ? kDone : Report(status); }

// The option --json of all commands that report something. `file` becomes its value: a path, "-"
// for stdout, or empty where the option was not given.
void AddJsonOption(CLI::App& app, std::string* file);

// True where the user wants JSON on stdout and no other text there.
inline bool OnlyJson(const std::string& file) { return file == "-"; }

// Writes `json` where the option says; nothing where it was not given. Text that is not UTF-8 is
// written with replacement characters.
Status WriteJson(const nlohmann::json& json, const std::string& file);

}  // namespace caesura::command

#endif  // CAESURA_TRAINING_COMMAND_COMMAND_H_
