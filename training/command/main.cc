// SPDX-License-Identifier: Apache-2.0
#include <CLI/CLI.hpp>

#include "training/command/command.h"

using caesura::command::RunFunction;

int main(int argc, char** argv) {
  CLI::App app{
      "caesura trains ONNX models: forward, loss, backward and optimizer in one resumable plan.",
      "caesura"};
  app.set_version_flag("--version", caesura::command::VersionText,
                       "What this is, how it was built, what it runs on");
  app.require_subcommand(1);
  app.set_config(
      "--config", "",
      "A TOML or INI file with options, in a section for each command ([train], then epochs = 3); "
      "the command line goes first");
  app.allow_config_extras(CLI::config_extras_mode::error);  // a misspelt option is told of
  app.fallthrough();  // --config may stand after the command, too
  app.footer(
      "'caesura COMMAND --help' says more. Exit codes: 0 done, 1 failed, 2 wrong usage, "
      "3 stopped by a signal.");
  RunFunction run;
  caesura::command::AddTrain(app, &run);
  caesura::command::AddEvaluate(app, &run);
  caesura::command::AddPredict(app, &run);
  caesura::command::AddInspect(app, &run);
  caesura::command::AddBench(app, &run);
  caesura::command::AddReplay(app, &run);
  caesura::command::AddReport(app, &run);
  caesura::command::AddConformance(app, &run);
  caesura::command::AddConvert(app, &run);
  caesura::command::AddWrapModel(app, &run);
  caesura::command::AddGradient(app, &run);
  caesura::command::AddLora(app, &run);
  caesura::command::AddEnv(app, &run);
  caesura::command::AddCache(app, &run);
  try {  // the parser's way of saying "help was asked for" and "wrong usage"
    app.parse(argc, argv);
  } catch (const CLI::ParseError& error) {
    return app.exit(error) == 0 ? caesura::command::kDone : caesura::command::kUsage;
  }
  return run();
}
