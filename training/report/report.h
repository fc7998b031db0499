// SPDX-License-Identifier: Apache-2.0
// A report of a training run or of a step as one HTML file: loss and learning rate, the step's time
// by op and by
// source line, its memory, its graph, what fell back and why, and what to try first. The file holds
// all that it shows and asks no server for anything.
//
//   Report report{.title = "net.onnx"};
//   RunRecorder recorder;
//   session->Step(feeds, {&recorder});
//   report.runs = recorder.Runs();
//   WriteReport(report, "report.html");
#ifndef CAESURA_TRAINING_REPORT_REPORT_H_
#define CAESURA_TRAINING_REPORT_REPORT_H_

#include <cstdint>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "core/profile/run_recorder.h"
#include "graph_transforms/shapes/cpu_fallback.h"
#include "training/files/training_curves.h"
#include "training/session/training_session.h"

namespace caesura {

// An op that was left to another runtime, the reason, and the lines of the user's code.
struct Fallback {
  std::string op, reason;
  std::vector<std::string> places;
};

struct Report {
  std::string title = {};
  std::vector<std::pair<std::string, std::string>> options = {};  // as the user would name them
  TrainingCurves curves = {};
  std::vector<RecordedRun> runs =
      {};  // of one step: a whole one, or the programs of a wrapped module
  std::vector<Fallback> fallbacks = {};
  // Seconds in our own kernels and in calls left to PyTorch, where somebody has counted them.
  std::optional<std::pair<double, double>> own_and_pytorch_seconds = {};
  CpuFallbackReport cpu_fallback = {};
};

// Something to try first, and what in the report speaks for it.
struct Advice {
  std::string what, why;
};
// In the order of what they promise; empty where nothing stands out.
std::vector<Advice> FirstThingsToTry(const Report& report);

// All of the report, with what this build and machine are, as one JSON object. Text that is not
// UTF-8 has replacement characters.
std::string ReportJson(const Report& report);
// The page that shows it.
std::string ReportPage(const Report& report);
// Writes the page, replacing a file that is there. Fails with kIoError.
Status WriteReport(const Report& report, const std::string& path);

// One step of the session, as any other, and the report on it with the curves of the session's
// steps so far. Returns the loss. Fails as TrainingSession::Step does, and with kIoError after a
// step that was done.
Result<double> WriteStepReport(TrainingSession& session, const NamedValues& feeds,
                               const std::string& path, const std::string& title = "training step");

}  // namespace caesura

#endif  // CAESURA_TRAINING_REPORT_REPORT_H_
