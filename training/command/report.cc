// SPDX-License-Identifier: Apache-2.0
// `caesura report`: a page that shows where a training step's, or a run's, time and memory go.
#include <cstdio>
#include <memory>

#include <CLI/CLI.hpp>

#include "core/base/status_macros.h"
#include "core/onnx/model_reader.h"
#include "training/command/command.h"
#include "training/command/train/made_step.h"
#include "training/command/train/trained_model.h"
#include "training/session/exported_step.h"
#include "training/report/report.h"

namespace caesura::command {
namespace {

struct ReportOptions {
  TrainOptions train;  // only loss, optimizer, provider, threads
  FeedOptions feeds;
  std::string output = "report.html";
};

// The second step: the first one plans, and fills caches.
Status ReportStep(const ReportOptions& options, const Model& model) {
  ASSIGN_OR_RETURN(const auto session, MakeStepSession(options.train, model));
  ASSIGN_OR_RETURN(const NamedValues feeds, MakeFeeds(options.feeds, StepInputs(*session)));
  RETURN_IF_ERROR(session->Step(feeds).status());
  return WriteStepReport(*session, feeds, options.output, options.train.model).status();
}

Status ReportRun(const ReportOptions& options) {
  ASSIGN_OR_RETURN(Model model, ReadTrainedModel(options.train.model, ""));
  ASSIGN_OR_RETURN(const NamedValues feeds, MakeFeeds(options.feeds, RequiredInputs(model)));
  ASSIGN_OR_RETURN(const auto session, MakeSession(std::move(model), options.train));
  RETURN_IF_ERROR(session->Run(feeds).status());
  RunRecorder recorder;
  RunOptions run;
  run.observers = {&recorder};
  RETURN_IF_ERROR(session->Run(feeds, {}, std::move(run)).status());
  return WriteReport({.title = options.train.model, .runs = recorder.Runs()}, options.output);
}

Status MakeReport(const ReportOptions& options) {
  const std::string& path = options.train.model;
  ASSIGN_OR_RETURN(const bool exported, IsExportedStep(path));
  if (!exported && !options.train.has_loss) {
    RETURN_IF_ERROR(ReportRun(options));
  } else {
    ASSIGN_OR_RETURN(const Model model, ReadModel(exported ? ExportedModelPath(path) : path));
    RETURN_IF_ERROR(ReportStep(options, model));
  }
  std::printf("wrote %s\n", options.output.c_str());
  return {};
}

constexpr char kReportNotes[] =
    R"(The page is one file that needs no other: time by op and by source line, memory, graph, and what to try first.
Without --loss it shows a run of the model. Inputs that --inputs does not bring are made up: floats from a fixed
sequence in [0, 1), everything else zero. 'caesura train --report FILE' adds the curves of a training run.

Examples
    caesura report net.onnx --dim batch=32 --loss cross_entropy --optimizer adamw
    caesura report step --dim batch=32 --output step.html)";

}  // namespace

void AddReport(CLI::App& app, RunFunction* run) {
  auto options = std::make_shared<ReportOptions>();
  CLI::App* sub = app.add_subcommand(
      "report", "Write a page about a model's training step: time, memory, graph");
  sub->add_option("model", options->train.model,
                  "The ONNX model, or the folder of an exported step")
      ->required();
  AddFeedOptions(*sub, &options->feeds);
  options->train.has_loss = false;
  AddLossOptions(*sub, &options->train);
  AddOptimizerOption(*sub, &options->train);
  AddPlacementOptions(*sub, &options->train);
  sub->add_option("--output", options->output, "The page (.html)")->capture_default_str();
  sub->footer(kReportNotes);
  sub->callback([=] { *run = [=] { return ExitCodeOf(MakeReport(*options)); }; });
}

}  // namespace caesura::command
