// SPDX-License-Identifier: Apache-2.0
// `caesura bench`: how long runs of a model take, and a training step, beside onnxruntime where
// Python has it.
#include <algorithm>
#include <cassert>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include <CLI/CLI.hpp>
#include <nlohmann/json.hpp>

#include "core/base/env.h"
#include "core/base/status_macros.h"
#include "core/files/file_system.h"
#include "core/onnx/model_reader.h"
#include "training/command/command.h"
#include "training/command/train/made_step.h"
#include "training/command/tensor_files.h"
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
  bool beside = true;
};

// One system's turn of a round: runs for `seconds` and returns how long each run took.
using Turn = std::function<Result<Milliseconds>(double seconds)>;

struct System {
  std::string name;
  Turn turn;
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

// The peer's side. It waits for no one: a process for each turn, which reads its task from a file
// beside it.
constexpr char kPeer[] = R"(import json, pathlib, sys, time
folder = pathlib.Path(__file__).parent
task = json.loads((folder / "task.json").read_text())
try:
    import numpy, onnxruntime
except ImportError:
    sys.exit(3)
options = onnxruntime.SessionOptions()
if task["threads"]:
    options.intra_op_num_threads = task["threads"]
options.log_severity_level = 3
session = onnxruntime.InferenceSession(task["model"], options, providers=["CPUExecutionProvider"])
with numpy.load(folder / "feeds.npz") as file:
    feeds = dict(file)
session.run(None, feeds)
times, begin = [], time.perf_counter()
before = begin
while not times or before - begin < task["seconds"]:
    session.run(None, feeds)
    after = time.perf_counter()
    times.append(1000 * (after - before))
    before = after
(folder / "answer.json").write_text(json.dumps({"version": onnxruntime.__version__, "times": times}))
)";

constexpr int kPeerMissing = 3;  // the peer's exit code where its package is not installed

// onnxruntime, in a Python process; its files lie in a folder of their own, removed with this.
class Peer {
 public:
  static Result<std::unique_ptr<Peer>> Create(const std::string& model, const NamedValues& feeds,
                                              int threads) {
    char folder[] = "/tmp/caesura-bench-XXXXXX";
    if (mkdtemp(folder) == nullptr) return IoError("no temporary folder can be made");
    std::unique_ptr<Peer> out(new Peer(folder, model, threads));
    TensorFile file;
    for (const auto& [name, value] : feeds) file.tensors[name] = value.tensor();
    RETURN_IF_ERROR(WriteTensorFile(out->folder_ + "/feeds.npz", file));
    RETURN_IF_ERROR(out->Write("peer.py", kPeer));
    return out;
  }
  ~Peer() {
    for (const char* name : {"peer.py", "task.json", "feeds.npz", "answer.json", "errors.txt"}) {
      std::remove((folder_ + "/" + name).c_str());
    }
    std::remove(folder_.c_str());
  }

  // Fails with kNotFound where Python or onnxruntime is not there.
  Result<Milliseconds> Run(double seconds) {
    RETURN_IF_ERROR(Write(
        "task.json",
        nlohmann::json{{"model", model_}, {"threads", threads_}, {"seconds", seconds}}.dump()));
    const std::string command =
        "'" + env::Python() + "' " + folder_ + "/peer.py >/dev/null 2>" + folder_ + "/errors.txt";
    const int code = std::system(command.c_str());
    if (WIFEXITED(code) && (WEXITSTATUS(code) == kPeerMissing || WEXITSTATUS(code) == 127)) {
      return NotFound("'" + env::Python() + "' has no onnxruntime");
    }
    ASSIGN_OR_RETURN(const std::string errors,
                     ReadWholeFile(PosixFileSystem(), folder_ + "/errors.txt", 1 << 20));
    if (code != 0)
      return Unsupported("onnxruntime: " +
                         errors.substr(errors.rfind('\n', errors.size() - 2) + 1));
    ASSIGN_OR_RETURN(const std::string text,
                     ReadWholeFile(PosixFileSystem(), folder_ + "/answer.json", 1 << 28));
    const auto answer = nlohmann::json::parse(text, nullptr, false);
    if (!answer.is_object() || !answer.contains("times"))
      return Internal("the peer's answer is no JSON");
    version_ = answer.value("version", "");
    return answer["times"].get<Milliseconds>();
  }

  const std::string& version() const { return version_; }

 private:
  Peer(std::string folder, std::string model, int threads)
      : folder_(std::move(folder)), model_(std::move(model)), threads_(threads) {}
  Status Write(const std::string& name, const std::string& text) {
    return WriteFileAtomically(PosixFileSystem(), folder_ + "/" + name,
                               [&](WritableFile& file) { return file.Write(text); });
  }

  std::string folder_, model_, version_;
  int threads_;
};

// REQUIRES: `times` is sorted and not empty.
double Percentile(const Milliseconds& times, double part) {
  assert(!times.empty() && std::is_sorted(times.begin(), times.end()));
  return times[std::min(times.size() - 1,
                        static_cast<size_t>(part * static_cast<double>(times.size())))];
}

Result<System> InferenceSystem(const BenchOptions& options, const Model& model,
                               const NamedValues& feeds) {
  ASSIGN_OR_RETURN(std::shared_ptr<Session> session, MakeSession(model.Clone(), options.train));
  return System{"run", [session, feeds](double seconds) {
                  return TimeRuns(seconds, [&] { return session->Run(feeds).status(); });
                }};
}

Result<System> TrainingSystem(const BenchOptions& options, const Model& model) {
  ASSIGN_OR_RETURN(std::shared_ptr<TrainingSession> session, MakeStepSession(options.train, model));
  ASSIGN_OR_RETURN(const NamedValues feeds, MakeFeeds(options.feeds, StepInputs(*session)));
  return System{"training step", [session, feeds](double seconds) {
                  return TimeRuns(seconds, [&] { return session->Step(feeds).status(); });
                }};
}

// Rounds of all systems' turns, one after the other, so that what slows the machine down slows all
// of them.
Status Measure(const BenchOptions& options, std::vector<System>& systems) {
  ProgressBar bar(
      {.label = "bench", .total = static_cast<int64_t>(systems.size()) * options.rounds});
  int64_t done = 0;
  for (int round = 0; round < options.rounds; ++round) {
    for (System& system : systems) {
      ASSIGN_OR_RETURN(const Milliseconds times, system.turn(options.seconds));
      system.times.insert(system.times.end(), times.begin(), times.end());
      bar.Update(++done, system.name);
    }
  }
  bar.Finish();
  return {};
}

Status PrintRows(const BenchOptions& options, std::vector<System>& systems) {
  nlohmann::json rows = nlohmann::json::array();
  if (!OnlyJson(options.json)) {
    std::printf("%-24s %8s %10s %10s %10s %10s   (milliseconds)\n", "", "runs", "median", "90%",
                "99%", "least");
  }
  for (System& system : systems) {
    std::sort(system.times.begin(), system.times.end());
    const Milliseconds& times = system.times;
    const double median = Percentile(times, 0.5), p90 = Percentile(times, 0.9),
                 p99 = Percentile(times, 0.99);
    if (!OnlyJson(options.json)) {
      std::printf("%-24s %8zu %10.3f %10.3f %10.3f %10.3f\n", system.name.c_str(), times.size(),
                  median, p90, p99, times[0]);
    }
    rows.push_back({{"name", system.name},
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
  std::vector<System> systems;
  std::unique_ptr<Peer> peer;
  const bool trains = exported || options.train.has_loss;
  if (!exported) {  // the model of an exported step ends in its loss: nobody runs that for its
                    // outputs
    ASSIGN_OR_RETURN(const Model model, ReadTrainedModel(path, ""));
    ASSIGN_OR_RETURN(const NamedValues feeds, MakeFeeds(options.feeds, RequiredInputs(model)));
    ASSIGN_OR_RETURN(System own, InferenceSystem(options, model, feeds));
    systems.push_back(std::move(own));
    if (options.beside) {
      ASSIGN_OR_RETURN(peer, Peer::Create(path, feeds, options.train.training.threads));
      const Result<Milliseconds> tried = peer->Run(0);
      if (tried.ok()) {
        systems.push_back({"run, onnxruntime " + peer->version(),
                           [&](double seconds) { return peer->Run(seconds); }});
      } else {
        std::fprintf(stderr, "caesura: not compared: %s\n", tried.status().message().c_str());
      }
    }
  }
  if (trains) {
    ASSIGN_OR_RETURN(const Model model, ReadModel(exported ? ExportedModelPath(path) : path));
    ASSIGN_OR_RETURN(System step, TrainingSystem(options, model));
    systems.push_back(std::move(step));
  }
  RETURN_IF_ERROR(Measure(options, systems));
  return PrintRows(options, systems);
}

constexpr char kBenchNotes[] =
    R"(Each round gives every system a turn, so that what slows the machine down slows all of them. Inputs that --inputs
does not bring are made up: floats from a fixed sequence in [0, 1), everything else zero. onnxruntime is taken from
the Python that runs this command (or CAESURA_PYTHON); a step has no peer here: in a build from source, 'python -m caesura.bench' compares
steps with PyTorch's.

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
  sub->add_option("--rounds", options->rounds, "How often each system has its turn")
      ->check(CLI::PositiveNumber)
      ->capture_default_str();
  sub->add_flag("!--alone", options->beside, "Without onnxruntime");
  options->train.has_loss = false;
  AddLossOptions(*sub, &options->train);
  AddOptimizerOption(*sub, &options->train);
  AddPlacementOptions(*sub, &options->train);
  AddJsonOption(*sub, &options->json);
  sub->footer(kBenchNotes);
  sub->callback([=] { *run = [=] { return ExitCodeOf(RunBench(*options)); }; });
}

}  // namespace caesura::command
