// SPDX-License-Identifier: Apache-2.0
// `caesura replay`: a recorded step once more, node by node, to find out where its numbers go
// wrong.
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <memory>

#include <CLI/CLI.hpp>

#include "core/base/status_macros.h"
#include "core/onnx/model_reader.h"
#include "core/files/safetensors.h"
#include "core/profile/value_watch.h"
#include "training/command/command.h"
#include "training/command/isolated.h"
#include "training/command/train/train_options.h"
#include "training/session/exported_step.h"

namespace caesura::command {
namespace {

struct ReplayOptions {
  TrainOptions train;  // as the step was recorded
  std::string record;
  ProviderChoice against;
  std::optional<int> against_threads;
  std::string against_isa;
  std::vector<std::string> without;
  double tolerance = 1e-3;
};

Result<std::unique_ptr<TrainingSession>> Open(const TrainOptions& options,
                                              std::vector<std::string> without) {
  ASSIGN_OR_RETURN(const bool exported, IsExportedStep(options.model));
  ASSIGN_OR_RETURN(Model model,
                   ReadModel(exported ? ExportedModelPath(options.model) : options.model));
  ASSIGN_OR_RETURN(TrainingOptions training, MakeTrainingOptions(options, 1, /*is_text=*/false));
  if (exported) {
    ASSIGN_OR_RETURN(training.step, ReadStepOptions(model));
  }
  // The comparison leaves out whether it is refused.
  training.step.refuse_nonfinite = false;
  training.disabled_passes = std::move(without);
  return TrainingSession::Create(std::move(model), std::move(training));
}

// The recorded step on a session, watched.
Status RunStep(TrainingSession& session, const std::string& record, ExecutionObserver* watch) {
  RETURN_IF_ERROR(session.Restore(record).status());
  if (!session.runs().suspended())
    return InvalidArgument("'" + record + "' holds no step that waits");
  return session.ResumeStep({watch}).status();
}

Status FindNonfinite(const ReplayOptions& options) {
  ASSIGN_OR_RETURN(const auto session, Open(options.train, options.without));
  NonfiniteFinder finder;
  RETURN_IF_ERROR(RunStep(*session, options.record, &finder));
  const auto print = [](const char* what, const std::optional<WatchedNode>& node) {
    std::printf("%s: %s\n", what, node ? node->ToString().c_str() : "none");
  };
  print("first node that makes a NaN", finder.first_nan());
  print("first node that makes an infinity", finder.first_infinite());
  return {};
}

Result<ValueLog> FirstRun(const ReplayOptions& options) {
  ASSIGN_OR_RETURN(const auto session, Open(options.train, {}));
  ValueLog log;
  RETURN_IF_ERROR(RunStep(*session, options.record, &log));
  return log;
}

// The first run, in a process of its own: kernels choose their instruction set once in a process.
Result<ValueLog> FirstRunElsewhere(const ReplayOptions& options) {
  constexpr int kSeconds = 3600;
  std::string folder = (std::filesystem::temp_directory_path() / "caesura-replay-XXXXXX").string();
  if (mkdtemp(folder.data()) == nullptr) return IoError("no temporary folder can be made");
  const std::string path = folder + "/values.safetensors";
  const auto write = [&]() -> Status {
    ASSIGN_OR_RETURN(const ValueLog log, FirstRun(options));
    TensorFile file;
    for (const ValueLog::Entry& entry : log.entries()) {
      const std::string number = std::to_string(file.tensors.size());
      file.tensors[number] = entry.value;
      file.metadata[number] = entry.name;
    }
    return WriteSafetensors(path, file);
  };
  const std::string failed = RunIsolated(
      [&] {
        const Status status = write();
        return status.ok() ? std::string() : status.ToString();
      },
      kSeconds);
  Result<TensorFile> file = failed.empty()
                                ? ReadSafetensors(path)
                                : Result<TensorFile>(Internal("the first run: " + failed));
  std::filesystem::remove_all(folder);
  RETURN_IF_ERROR(file.status());
  std::vector<ValueLog::Entry> entries;
  for (size_t i = 0; i < file->tensors.size(); ++i) {
    const std::string number = std::to_string(i);
    entries.push_back({file->metadata[number], file->tensors[number], 0});
  }
  return ValueLog(std::move(entries));
}

Status Compare(const ReplayOptions& options) {
  const bool elsewhere = !options.against_isa.empty();
  ASSIGN_OR_RETURN(const ValueLog expected,
                   elsewhere ? FirstRunElsewhere(options) : FirstRun(options));
  if (elsewhere) setenv("CAESURA_MAX_ISA", options.against_isa.c_str(), /*overwrite=*/1);
  TrainOptions changed = options.train;
  if (!options.against.name.empty()) changed.provider = options.against;
  if (options.against_threads) changed.training.threads = *options.against_threads;
  ASSIGN_OR_RETURN(const auto second, Open(changed, options.without));
  ValueLog got;
  RETURN_IF_ERROR(RunStep(*second, options.record, &got));
  const auto difference = FirstDifference(expected, got, options.tolerance);
  if (difference) std::printf("the runs part at %s\n", difference->ToString().c_str());
  else
    std::printf("the runs agree: no value is off by more than %g of its largest magnitude\n",
                options.tolerance);
  return {};
}

Status Replay(const ReplayOptions& options) {
  const bool compares = !options.against.name.empty() || options.against_threads ||
                        !options.against_isa.empty() || !options.without.empty();
  return compares ? Compare(options) : FindNonfinite(options);
}

constexpr char kReplayNotes[] =
    R"(The model and the options of the step are those of the run that recorded it. Without --against and the like the
step runs once, and the first node that makes a NaN out of numbers is named, with what it has read and where it is in
the user's source. With them it runs twice, and the first value that differs is named. Values that only one of the
runs has are not compared: fused nodes keep some to themselves, '--without row_fusion' takes such nodes apart.

Examples
    caesura train net.onnx --data train.npz --target labels --lr 10 --refuse-nonfinite --record nan.step
    caesura replay net.onnx nan.step --target labels --lr 10
    caesura replay net.onnx nan.step --target labels --lr 10 --without row_fusion
    caesura replay net.onnx nan.step --target labels --lr 10 --against openvino --tolerance 1e-3)";

}  // namespace

void AddReplay(CLI::App& app, RunFunction* run) {
  auto options = std::make_shared<ReplayOptions>();
  CLI::App* sub = app.add_subcommand(
      "replay", "Run a recorded step again, and name the node where its numbers go wrong");
  sub->add_option("model", options->train.model,
                  "The ONNX model, or the folder of an exported step")
      ->required();
  sub->add_option("record", options->record,
                  "What --record has written, or a checkpoint with a step that waits before its "
                  "first node")
      ->required();
  sub->add_option("--target", options->train.target, "The array that the loss compares with");
  AddStepOptions(*sub, &options->train);
  const std::string group = "The second run";
  sub->add_option("--against", options->against.name, "Its provider")->group(group);
  sub->add_option("--against-threads", options->against_threads, "Its threads")->group(group);
  sub->add_option("--against-isa", options->against_isa,
                  "The widest instruction set of its kernels")
      ->check(CLI::IsMember({"x86-64", "x86-64-v3", "x86-64-v4"}))
      ->group(group);
  sub->add_option("--without", options->without,
                  "Passes that it leaves out; in a single run, those that this one leaves out")
      ->group(group);
  sub->add_option("--tolerance", options->tolerance,
                  "How far a value may be off, in parts of its largest magnitude")
      ->capture_default_str()
      ->group(group);
  sub->footer(kReplayNotes);
  sub->callback([=] { *run = [=] { return ExitCodeOf(Replay(*options)); }; });
}

}  // namespace caesura::command
