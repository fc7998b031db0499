// SPDX-License-Identifier: Apache-2.0
#include "training/files/checkpoint.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <limits>
#include <random>
#include <string>

#include "core/files/safetensors.h"
#include "tests/core/files/faulty_file_system.h"
#include "tests/temporary_folder.h"

namespace caesura {
namespace {

using testing::FaultyFileSystem;
using ::testing::HasSubstr;
using testing::TemporaryFolder;

// A checkpoint in which everything follows from `step`. Those of even steps hold a step that waits.
Checkpoint CheckpointOf(int64_t step, int64_t size = 300) {
  Checkpoint out;
  out.parameters["fc.weight"] =
      Tensor::Of<float>({size}, std::vector<float>(size, static_cast<float>(step)));
  out.parameters["fc.bias"] = Tensor::Of<double>({2}, {0.5, -static_cast<double>(step)});
  out.optimizer_state["fc.weight.m"] =
      Tensor::Of<float>({size}, std::vector<float>(size, step * 0.5f));
  out.properties["step"] = step;
  out.properties["rate"] = 0.1 * static_cast<double>(step);
  out.properties["schedule"] = "cosine " + std::to_string(step);
  if (step % 2 != 0) return out;
  out.step.emplace();
  out.step->program_counter = static_cast<int>(step);
  out.step->remaining = {"y"};
  out.step->values = {
      {"h", Tensor::Of<float>({size}, std::vector<float>(size, static_cast<float>(-step)))}};
  return out;
}

bool SameTensors(const std::map<std::string, Tensor>& a, const std::map<std::string, Tensor>& b) {
  if (a.size() != b.size()) return false;
  for (const auto& [name, tensor] : a) {
    auto it = b.find(name);
    if (it == b.end() || it->second.dtype() != tensor.dtype() ||
        it->second.shape() != tensor.shape())
      return false;
    if (std::memcmp(it->second.raw(), tensor.raw(), tensor.bytes()) != 0) return false;
  }
  return true;
}

bool SameStep(const Checkpoint& a, const Checkpoint& b) {
  if (!a.step || !b.step) return a.step.has_value() == b.step.has_value();
  return a.step->program_counter == b.step->program_counter &&
         SameTensors({{"h", a.step->values[0].value.tensor()}},
                     {{"h", b.step->values[0].value.tensor()}});
}

bool Same(const Checkpoint& a, const Checkpoint& b) {
  return SameStep(a, b) && a.properties == b.properties &&
         SameTensors(a.parameters, b.parameters) &&
         SameTensors(a.optimizer_state, b.optimizer_state);
}

TEST(CheckpointTest, ComesBackAsItWas) {
  TemporaryFolder folder;
  ASSERT_TRUE(SaveCheckpoint(CheckpointOf(3), folder.path("c")).ok());
  ASSERT_TRUE(SaveCheckpoint(CheckpointOf(7), folder.path("c")).ok());
  const Checkpoint restored = RestoreCheckpoint(folder.path("c")).value();
  EXPECT_TRUE(Same(restored, CheckpointOf(7)));
  EXPECT_EQ(restored.Get<int64_t>("step").value(), 7);
  EXPECT_EQ(restored.Get<double>("step").status().code(), StatusCode::kInvalidModel);
  EXPECT_EQ(restored.Get<double>("none").status().code(), StatusCode::kNotFound);
  EXPECT_EQ(PosixFileSystem().List(folder.path()).value(), std::vector<std::string>{"c"});
}

TEST(CheckpointTest, NumbersComeBackBitForBit) {
  FaultyFileSystem files;
  Checkpoint checkpoint;
  const double doubles[] = {0.1,     -0.0,     1e-320,   std::numeric_limits<double>::max(),
                            1.0 / 3, INFINITY, -INFINITY};
  for (double value : doubles)
    checkpoint.properties["d" + std::to_string(checkpoint.properties.size())] = value;
  checkpoint.properties["nan"] = std::nan("");
  checkpoint.properties["min"] = std::numeric_limits<int64_t>::min();
  checkpoint.properties["text"] = std::string("int:5");
  checkpoint.properties["none"] = std::string();
  ASSERT_TRUE(SaveCheckpoint(checkpoint, "c", files).ok());
  Checkpoint restored = RestoreCheckpoint("c", files).value();
  EXPECT_TRUE(std::isnan(restored.Get<double>("nan").value()));
  EXPECT_TRUE(std::signbit(restored.Get<double>("d1").value()));
  restored.properties.erase("nan");
  checkpoint.properties.erase("nan");
  EXPECT_EQ(restored.properties, checkpoint.properties);
}

TEST(CheckpointTest, OtherFilesAreRefused) {
  FaultyFileSystem files;
  EXPECT_EQ(RestoreCheckpoint("none", files).status().code(), StatusCode::kNotFound);
  ASSERT_TRUE(WriteSafetensors("other", {{{"w", Tensor::Scalar(1.f)}}, {}}, files).ok());
  EXPECT_THAT(RestoreCheckpoint("other", files).status().message(), HasSubstr("no checkpoint"));
  ASSERT_TRUE(WriteSafetensors("newer", {{}, {{"caesura.checkpoint", "3"}}}, files).ok());
  EXPECT_THAT(RestoreCheckpoint("newer", files).status().message(),
              HasSubstr("by a newer caesura"));
  Checkpoint strings;
  strings.parameters["s"] = Tensor::Of<std::string>({1}, {"text"});
  EXPECT_EQ(SaveCheckpoint(strings, "c", files).code(), StatusCode::kUnsupported);
}

// Every change of a value is noticed; changes between values (spaces, the order in the header) do
// not matter.
TEST(CheckpointTest, DamageIsNoticed) {
  FaultyFileSystem files;
  const Checkpoint saved = CheckpointOf(5, 20);
  ASSERT_TRUE(SaveCheckpoint(saved, "c", files).ok());
  const std::string good = ReadWholeFile(files, "c", 1 << 20).value();
  for (size_t i = 0; i < good.size(); ++i) {
    std::string bad = good;
    bad[i] ^= 1 << (i % 8);
    auto file = files.Create("bad").value();
    ASSERT_TRUE(file->Write(bad).ok());
    const Result<Checkpoint> restored = RestoreCheckpoint("bad", files);
    EXPECT_TRUE(!restored.ok() || Same(*restored, saved)) << "byte " << i;
  }
}

// CAESURA_LONG=1: ten times as many crashes.
uint32_t Often(uint32_t count) {
  return std::getenv("CAESURA_LONG") != nullptr ? 10 * count : count;
}

// Call n fails, or nothing works any more after it; then perhaps the machine goes down.
TEST(CheckpointTest, TheOldOneOrTheNewOneWhateverFails) {
  using Loss = FaultyFileSystem::Loss;
  const Checkpoint before = CheckpointOf(1), after = CheckpointOf(2);
  FaultyFileSystem counting;
  ASSERT_TRUE(SaveCheckpoint(before, "c", counting).ok());
  const int first = counting.calls();
  ASSERT_TRUE(SaveCheckpoint(after, "c", counting).ok());
  const int calls = counting.calls() - first;
  ASSERT_GT(calls, 7);
  int points = 0;
  for (int n = 0; n <= calls; ++n) {
    for (uint32_t seed = 0; seed < Often(60); ++seed, ++points) {
      FaultyFileSystem files;
      ASSERT_TRUE(SaveCheckpoint(before, "c", files).ok());
      if (seed % 2 == 0) files.FailCall(first + n);
      else files.StopAfter(first + n);
      const bool saved = SaveCheckpoint(after, "c", files).ok();
      EXPECT_EQ(saved, n == 0 ? seed % 2 == 0 : n == calls && seed % 2 == 1) << "call " << n;
      if (seed >= 2)
        files.Crash(seed < 4   ? Loss::kAll
                    : seed < 6 ? Loss::kNothing
                               : Loss::kRandom,
                    seed * 1000 + n);
      const Result<Checkpoint> found = RestoreCheckpoint("c", files);
      ASSERT_TRUE(found.ok()) << "call " << n << ", seed " << seed << ": "
                              << found.status().ToString();
      EXPECT_TRUE(Same(*found, after) || (!saved && Same(*found, before)))
          << "call " << n << ", seed " << seed;
      // Left-over files do not stop the next one.
      files.Crash(Loss::kNothing);
      ASSERT_TRUE(SaveCheckpoint(after, "c", files).ok());
      EXPECT_TRUE(Same(RestoreCheckpoint("c", files).value(), after));
    }
  }
  std::printf("%d crashes\n", points);
}

// The first checkpoint of a run: there is none, or a whole one.
TEST(CheckpointTest, NoneOrTheFirst) {
  for (int n = 0; n < 12; ++n) {
    for (uint32_t seed = 0; seed < Often(20); ++seed) {
      FaultyFileSystem files;
      files.StopAfter(n);
      const bool saved = SaveCheckpoint(CheckpointOf(1), "c", files).ok();
      files.Crash(FaultyFileSystem::Loss::kRandom, seed);
      const Result<Checkpoint> found = RestoreCheckpoint("c", files);
      if (found.ok()) EXPECT_TRUE(Same(*found, CheckpointOf(1)));
      else
        EXPECT_TRUE(found.status().code() == StatusCode::kNotFound && !saved)
            << found.status().ToString();
    }
  }
}

[[noreturn]] void SaveForever(const std::string& path) {
  for (int64_t step = 1;; ++step) {
    if (!SaveCheckpoint(CheckpointOf(step, 20000), path).ok()) ::_exit(1);
  }
}

TEST(CheckpointTest, SurvivesKill) {
  TemporaryFolder folder;
  const std::string path = folder.path("c");
  std::mt19937 random(7);
  int64_t last = 0;
  const auto rounds = static_cast<int>(Often(40));
  for (int round = 0; round < rounds; ++round) {
    const pid_t child = ::fork();
    ASSERT_GE(child, 0);
    if (child == 0) {
      ::prctl(PR_SET_PDEATHSIG, SIGKILL);  // or it would go on after a killed test
      SaveForever(path);
    }
    ::usleep(2000 + random() % 30000);
    ::kill(child, SIGKILL);
    int how = 0;
    ASSERT_EQ(::waitpid(child, &how, 0), child);
    ASSERT_TRUE(WIFSIGNALED(how)) << "the child could not save";
    const Result<Checkpoint> found = RestoreCheckpoint(path);
    if (!found.ok() && last == 0 && found.status().code() == StatusCode::kNotFound) continue;
    ASSERT_TRUE(found.ok()) << found.status().ToString();
    last = found->Get<int64_t>("step").value();
    EXPECT_TRUE(Same(*found, CheckpointOf(last, 20000)));
  }
  EXPECT_GT(last, 0);
  std::printf("%d kills while a file was saved\n", rounds);
}

}  // namespace
}  // namespace caesura
