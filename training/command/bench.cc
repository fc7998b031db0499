// SPDX-License-Identifier: Apache-2.0
// `caesura bench`: how long runs of a model take, and a training step.
#include <algorithm>
#include <cassert>
#include <chrono>
#include <cstdio>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include <CLI/CLI.hpp>
#include <nlohmann/json.hpp>

#include "core/base/status_macros.h"
#include "core/onnx/model_reader.h"
#include "training/command/command.h"
#include "training/command/train/made_step.h"
#include "training/command/train/train_options.h"
#include "training/command/train/trained_model.h"
#include "training/session/exported_step.h"
#include "training/files/progress_bar.h"

namespace caesura::command {
namespace {

using Milliseconds = std::vector<double>;

struct BenchOptions {
  TrainOptions train;  // only loss, optimizer, provider, threads
  FeedOptions feeds;
  std::string json;
  double seconds = 1;
  int rounds = 5;
};

// A run, or a step, that is timed.
struct Timed {
  std::string name;
  std::function<Status()> run;
  Milliseconds times = {};
};

Result<Milliseconds> TimeRuns(double seconds, const std::function<Status()>& run) {
  using Clock = std::chrono::steady_clock;
  Milliseconds out;
  RETURN_IF_ERROR(run());  // plans, and warms caches
  const auto begin = Clock::now();
  for (auto before = begin;
       out.empty() || before - begin < std::chrono::duration<double>(seconds);) {
    RETURN_IF_ERROR(run());
    const auto after = Clock::now();
    out.push_back(std::chrono::duration<double, std::milli>(after - before).count());
    before = after;
  }
  return out;
}

// REQUIRES: `times` is sorted and not empty.
double Percentile(const Milliseconds& times, double part) {
  assert(!times.empty() && std::is_sorted(times.begin(), times.end()));
  return times[std::min(times.size() - 1,
                        static_cast<size_t>(part * static_cast<double>(times.size())))];
}

Result<Timed> TimedRun(const BenchOptions& options, Model model) {
  ASSIGN_OR_RETURN(const NamedValues feeds, MakeFeeds(options.feeds, RequiredInputs(model)));
  ASSIGN_OR_RETURN(std::shared_ptr<Session> session, MakeSession(std::move(model), options.train));
  return Timed{"run", [session, feeds] { return session->Run(feeds).status(); }};
}

Result<Timed> TimedStep(const BenchOptions& options, const Model& model) {
  ASSIGN_OR_RETURN(std::shared_ptr<TrainingSession> session, MakeStepSession(options.train, model));
  ASSIGN_OR_RETURN(const NamedValues feeds, MakeFeeds(options.feeds, StepInputs(*session)));
  return Timed{"training step", [session, feeds] { return session->Step(feeds).status(); }};
}

// Rounds in which each has its turn, one after the other, so that what slows the machine down slows
// both of them.
Status Measure(const BenchOptions& options, std::vector<Timed>& all) {
  ProgressBar bar({.label = "bench", .total = static_cast<int64_t>(all.size()) * options.rounds});
  int64_t done = 0;
  for (int round = 0; round < options.rounds; ++round) {
    for (Timed& one : all) {
      ASSIGN_OR_RETURN(const Milliseconds times, TimeRuns(options.seconds, one.run));
      one.times.insert(one.times.end(), times.begin(), times.end());
      bar.Update(++done, one.name);
    }
  }
  bar.Finish();
  return {};
}

Status PrintRows(const BenchOptions& options, std::vector<Timed>& all) {
  nlohmann::json rows = nlohmann::json::array();
  if (!OnlyJson(options.json)) {
    std::printf("%-24s %8s %10s %10s %10s %10s   (milliseconds)\n", "", "runs", "median", "90%",
                "99%", "least");
  }
  for (Timed& one : all) {
    std::sort(one.times.begin(), one.times.end());
    const Milliseconds& times = one.times;
    const double median = Percentile(times, 0.5), p90 = Percentile(times, 0.9),
                 p99 = Percentile(times, 0.99);
    if (!OnlyJson(options.json)) {
      std::printf("%-24s %8zu %10.3f %10.3f %10.3f %10.3f\n", one.name.c_str(), times.size(),
                  median, p90, p99, times[0]);
    }
    rows.push_back({{"name", one.name},
                    {"runs", times.size()},
                    {"median_ms", median},
                    {"p90_ms", p90},
                    {"p99_ms", p99},
                    {"least_ms", times[0]}});
  }
  return WriteJson(rows, options.json);
}

Status RunBench(const BenchOptions& options) {
  const std::string& path = options.train.model;
  ASSIGN_OR_RETURN(const bool exported, IsExportedStep(path));
  std::vector<Timed> all;
  if (!exported) {  // the model of an exported step ends in its loss: nobody runs that for its
                    // outputs
    ASSIGN_OR_RETURN(Model model, ReadTrainedModel(path, ""));
    ASSIGN_OR_RETURN(Timed run, TimedRun(options, std::move(model)));
    all.push_back(std::move(run));
  }
  if (exported || options.train.has_loss) {
    ASSIGN_OR_RETURN(const Model model, ReadModel(exported ? ExportedModelPath(path) : path));
    ASSIGN_OR_RETURN(Timed step, TimedStep(options, model));
    all.push_back(std::move(step));
  }
  RETURN_IF_ERROR(Measure(options, all));
  return PrintRows(options, all);
}

constexpr char kBenchNotes[] =
    R"(Each round gives both their turn, so that what slows the machine down slows both. Inputs that --inputs does not
bring are made up: floats from a fixed sequence in [0, 1), everything else zero. In a build from source,
'python -m caesura.bench' compares steps with those of PyTorch, JAX and onnxruntime-training.

Examples
    caesura bench net.onnx --dim batch=32
    caesura bench net.onnx --dim batch=32 --loss cross_entropy --optimizer adamw --json bench.json)";

}  // namespace

void AddBench(CLI::App& app, RunFunction* run) {
  auto options = std::make_shared<BenchOptions>();
  CLI::App* sub =
      app.add_subcommand("bench", "Time a model's runs, and its training step with --loss");
  sub->add_option("model", options->train.model,
                  "The ONNX model, or the folder of an exported step")
      ->required();
  AddFeedOptions(*sub, &options->feeds);
  sub->add_option("--seconds", options->seconds, "Length of one turn")
      ->check(CLI::PositiveNumber)
      ->capture_default_str();
  sub->add_option("--rounds", options->rounds, "How often each has its turn")
      ->check(CLI::PositiveNumber)
      ->capture_default_str();
  options->train.has_loss = false;
  AddLossOptions(*sub, &options->train);
  AddOptimizerOption(*sub, &options->train);
  AddPlacementOptions(*sub, &options->train);
  AddJsonOption(*sub, &options->json);
  sub->footer(kBenchNotes);
  sub->callback([=] { *run = [=] { return ExitCodeOf(RunBench(*options)); }; });
}

}  // namespace caesura::command
