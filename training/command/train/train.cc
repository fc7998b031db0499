// SPDX-License-Identifier: Apache-2.0
// `caesura train`: the command line of a training run.
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <csignal>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include <CLI/CLI.hpp>

#include "core/base/env.h"
#include "training/command/command.h"
#include "training/command/train/trainer.h"

namespace caesura::command {
namespace {

volatile std::sig_atomic_t stop_requested = 0;

// For Ctrl-C: a second one ends the process.
void StopOrEnd(int signal) {
  stop_requested = 1;
  std::signal(signal, SIG_DFL);
}

// For a scheduler's signals: they never end the process.
void Stop(int) { stop_requested = 1; }

// Runs this command again, as `count` ranks under mpirun. Returns only where that fails.
Status StartRanks(int count) {
  std::ifstream file("/proc/self/cmdline", std::ios::binary);
  std::vector<std::string> words = {"mpirun",          "--bind-to", "none",
                                    "--oversubscribe", "-n",        std::to_string(count)};
  for (std::string word; std::getline(file, word, '\0');) words.push_back(word);
  std::vector<char*> arguments;
  for (std::string& word : words) arguments.push_back(word.data());
  arguments.push_back(nullptr);
  const unsigned cores = std::max(1u, std::thread::hardware_concurrency());
  const std::string threads = std::to_string(std::max(1u, cores / static_cast<unsigned>(count)));
  setenv("CAESURA_NUM_THREADS", threads.c_str(), /*overwrite=*/0);
  execvp(arguments[0], arguments.data());
  return NotFound("--nproc: mpirun cannot be started (" + std::string(std::strerror(errno)) +
                  "): install Open MPI (Debian: openmpi-bin)");
}

int RunTrain(const TrainOptions& options) {
  if (options.nproc > 1 && env::LaunchedRanks() == 1) return Report(StartRanks(options.nproc));
  // From here to the end of the process: such a signal may come before the first step, and after
  // the last one. In between, Trainer has handlers of its own.
  const std::vector<int>& snapshot_on = options.snapshot_on;
  for (const int signal : snapshot_on) std::signal(signal, Stop);
  const Result<std::unique_ptr<Trainer>> trainer = Trainer::Create(options);
  if (!trainer.ok()) return Report(trainer.status());
  for (const int signal : {SIGINT, SIGTERM}) {
    const bool is_taken = std::count(snapshot_on.begin(), snapshot_on.end(), signal) > 0;
    if (!is_taken) std::signal(signal, StopOrEnd);
  }
  return ExitCodeOf((*trainer)->Run(&stop_requested));
}

constexpr char kTrainExamples[] = R"(Examples
  A classifier of images, x: float32[batch, 1, 8, 8], from arrays "images" and "labels":
    caesura train net.onnx --data digits.npz --feed x=images --target labels --epochs 20 \
      --optimizer adamw --lr 2e-3 --schedule cosine --warmup 50 --output trained.onnx

  A language model of characters, tokens: int64[batch, 128]:
    caesura train gpt.onnx --data book.txt --batch 16 --steps 2000 --lr 1e-3 --clip 1 --log loss.csv

  A run that may be stopped at any moment, also by kill -9 or a power cut, and started again:
    caesura train net.onnx --data digits.npz --feed x=images --target labels \
      --checkpoint run.ckpt --save-every 100 --resume

  The same run on four processes, each with a quarter of every batch:
    caesura train net.onnx --data digits.npz --feed x=images --target labels --batch 64 --nproc 4

  A run that a batch scheduler may interrupt: it stops within one node of a step, and the second
  start goes on there, with the same numbers as without the interruption:
    caesura train net.onnx --data digits.npz --feed x=images --target labels \
      --checkpoint run.ckpt --snapshot-on SIGTERM,SIGUSR1 --resume

'caesura inspect MODEL' says beforehand what cannot be trained, and what memory it takes.)";

}  // namespace

void AddTrain(CLI::App& app, RunFunction* run) {
  auto options = std::make_shared<TrainOptions>();
  CLI::App* sub = app.add_subcommand("train", "Train an ONNX model on arrays or text");
  AddTrainOptions(*sub, options.get());
  sub->footer(kTrainExamples);
  sub->callback([=] { *run = [=] { return RunTrain(*options); }; });
}

}  // namespace caesura::command
