// SPDX-License-Identifier: Apache-2.0
// Processes that stop a step before its k-th node, save it and are killed; new processes that take
// it up. The step and the two after it end with the bits of an undisturbed session, parameters,
// optimizer state and losses. CAESURA_LONG=1: every k, where otherwise some are left out.
#include "tests/training/kill_sweep.h"

#include <algorithm>
#include <chrono>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <functional>

#include <gtest/gtest.h>
#include <spawn.h>
#include <sys/wait.h>

#include "tests/temporary_folder.h"
#include "tests/test_paths.h"
#include "training/files/checkpoint.h"

extern char** environ;

namespace caesura::testing {
namespace {

// The status of waitpid.
int RunChild(std::vector<std::string> arguments) {
  arguments.insert(arguments.begin(), kKillSweepChild);
  std::vector<char*> argv;
  for (std::string& argument : arguments) argv.push_back(argument.data());
  argv.push_back(nullptr);
  pid_t pid = 0;
  if (posix_spawn(&pid, argv[0], nullptr, nullptr, argv.data(), environ) != 0) return -1;
  int status = -1;
  return waitpid(pid, &status, 0) == pid ? status : -1;
}

bool SameBitsByName(const std::map<std::string, Tensor>& a,
                    const std::map<std::string, Tensor>& b) {
  return a.size() == b.size() && std::all_of(a.begin(), a.end(), [&](const auto& entry) {
           const auto found = b.find(entry.first);
           return found != b.end() &&
                  SameBits(RuntimeValue(entry.second), RuntimeValue(found->second));
         });
}

double Milliseconds(const std::function<bool()>& work) {
  const auto began = std::chrono::steady_clock::now();
  EXPECT_TRUE(work());
  return 1e-6 * static_cast<double>((std::chrono::steady_clock::now() - began).count());
}

// "median (most)".
std::string Spread(std::vector<double> values, const char* unit) {
  std::sort(values.begin(), values.end());
  char text[64];
  std::snprintf(text, sizeof(text), "%.1f (%.1f) %s", values[values.size() / 2], values.back(),
                unit);
  return text;
}

void Sweep(const std::string& model, int every) {
  if (std::getenv("CAESURA_LONG") != nullptr) every = 1;
  TemporaryFolder folder;
  const RealModel real = KilledModel(model);
  auto session = SessionOf(real);
  const auto plan = session->runs().Plan(real.batches[0]).value();
  const auto steps = static_cast<int>(plan->steps().size());
  std::vector<double> losses;
  for (const NamedValues& batch : real.batches) losses.push_back(session->Step(batch).value());
  ASSERT_TRUE(session->Save(folder.path("expected")).ok());
  const Checkpoint expected = RestoreCheckpoint(folder.path("expected")).value();
  const double state = std::filesystem::file_size(folder.path("expected")) / 1024.0;
  std::vector<double> added, saves, restores;  // KiB beyond `state`, milliseconds
  for (int k = 0; k < steps; k += every) {
    SCOPED_TRACE("killed before node " + std::to_string(k) + " of " + std::to_string(steps));
    const int killed = RunChild({"begin", model, std::to_string(k), folder.path("step")});
    ASSERT_TRUE(WIFSIGNALED(killed) && WTERMSIG(killed) == SIGKILL) << killed;
    added.push_back(std::filesystem::file_size(folder.path("step")) / 1024.0 - state);
    restores.push_back(Milliseconds([&] { return session->Restore(folder.path("step")).ok(); }));
    saves.push_back(Milliseconds([&] { return session->Save(folder.path("again")).ok(); }));
    ASSERT_EQ(RunChild({"end", model, folder.path("step"), folder.path("out")}), 0);
    const Checkpoint out = RestoreCheckpoint(folder.path("out")).value();
    EXPECT_TRUE(SameBitsByName(out.parameters, expected.parameters));
    EXPECT_TRUE(SameBitsByName(out.optimizer_state, expected.optimizer_state));
    for (size_t i = 0; i < losses.size(); ++i)
      EXPECT_EQ(out.Get<double>("caller.loss" + std::to_string(i)).value(), losses[i]) << i;
  }
  std::printf("%s: %zu of %d steps; state %.1f, arena %.1f, added %s; save %s, restore %s\n",
              model.c_str(), added.size(), steps, state,
              static_cast<double>(plan->arena_bytes()) / 1024, Spread(added, "KiB").c_str(),
              Spread(saves, "ms").c_str(), Spread(restores, "ms").c_str());
}

TEST(KillSweep, Mlp) { Sweep("mlp", 3); }
TEST(KillSweep, Digits) { Sweep("digits", 5); }
TEST(KillSweep, DigitsWithDropout) { Sweep("dropout", 11); }
TEST(KillSweep, CharGpt) { Sweep("chargpt", 9); }
TEST(KillSweep, Llama) { Sweep("llama", 9); }

// Data order, augmentation, dropout and the learning rate's course included.
TEST(KillSweep, AHundredStepsAre37AKillAnd63) {
  TemporaryFolder folder;
  const std::string straight = folder.path("straight"), killed = folder.path("killed");
  ASSERT_EQ(RunChild({"train", straight, "-1"}), 0);
  const Checkpoint expected = RestoreCheckpoint(straight).value();
  EXPECT_EQ(expected.Get<int64_t>("session.updates").value(), kHundredSteps);
  for (const char* at : {"0", "9", "17"}) {
    SCOPED_TRACE(std::string("killed before node ") + at);
    std::filesystem::remove(killed);
    const int status = RunChild({"train", killed, at});
    ASSERT_TRUE(WIFSIGNALED(status) && WTERMSIG(status) == SIGKILL) << status;
    ASSERT_TRUE(RestoreCheckpoint(killed).value().step.has_value());
    ASSERT_EQ(RunChild({"train", killed, "-1"}), 0);
    const Checkpoint found = RestoreCheckpoint(killed).value();
    EXPECT_TRUE(SameBitsByName(found.parameters, expected.parameters));
    EXPECT_TRUE(SameBitsByName(found.optimizer_state, expected.optimizer_state));
    EXPECT_EQ(found.properties, expected.properties);
  }
}

}  // namespace
}  // namespace caesura::testing
