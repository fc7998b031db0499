// SPDX-License-Identifier: Apache-2.0
// The kernels of the example models' steps, compiled by the real NVRTC for three generations of
// GPUs: registers and spills of each are listed. CHECKED_CUBINS names a folder that keeps the code.
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <iostream>
#include <map>
#include <regex>
#include <string>
#include <utility>

#include "tests/training/cuda_training.h"

namespace caesura::testing {
namespace {

constexpr const char* kChips = "sm_80,sm_90,sm_100";

struct Chip {
  int kernels = 0, most_registers = 0, spilled_bytes = 0;
  std::string largest;
};

// By chip, from lines of checked_nvrtc.cc.
std::map<std::string, Chip> ReadUsage(const std::filesystem::path& log) {
  static const std::regex entry("(\\w+) .*entry function '(\\w+)'.*"),
      spill("(\\w+) .* (\\d+) bytes spill stores.*"), used("(\\w+) .*Used (\\d+) registers.*");
  std::map<std::string, Chip> out;
  std::ifstream lines(log);
  std::string kernel;
  std::smatch match;
  for (std::string line; std::getline(lines, line);) {
    if (std::regex_match(line, match, entry)) {
      ++out[match[1]].kernels;
      kernel = match[2];
    } else if (std::regex_match(line, match, spill)) {
      out[match[1]].spilled_bytes += std::stoi(match[2]);
    } else if (std::regex_match(line, match, used)) {
      Chip& chip = out[match[1]];
      if (std::stoi(match[2]) <= chip.most_registers) continue;
      chip.most_registers = std::stoi(match[2]);
      chip.largest = kernel;
    }
  }
  return out;
}

class CudaChips : public CudaTraining {
 protected:
  void TearDown() override {
    ::unsetenv("CHECKED_ARCHITECTURES");
    ::unsetenv("CHECKED_NVRTC_LOG");
    CudaTraining::TearDown();
  }
};

TEST_F(CudaChips, TakeTheKernelsOfTheModels) {
  SKIP_ON_GPU();
  const std::filesystem::path log =
      std::filesystem::path(::testing::TempDir()) / "caesura_cuda_chips.log";
  std::filesystem::remove(log);
  ::setenv("CHECKED_ARCHITECTURES", kChips, 1);
  ::setenv("CHECKED_NVRTC_LOG", log.c_str(), 1);
  for (const RealModel& model : {Mlp(), CharGpt(), Llama(), Digits()}) {
    RealModel clipped = std::move(Clipped(model)[0]);
    for (const DType precision : {DType::kFloat32, DType::kBFloat16}) {
      clipped.options.step.precision = precision;
      EXPECT_THAT(OnHost(clipped), ::testing::IsEmpty());
    }
  }
  const std::map<std::string, Chip> chips = ReadUsage(log);
  ASSERT_EQ(chips.size(), 3u);
  for (const auto& [name, chip] : chips) {
    std::cout << name << ": " << chip.kernels << " kernels, at most " << chip.most_registers
              << " registers (" << chip.largest << "), " << chip.spilled_bytes
              << " bytes spilled\n";
    EXPECT_EQ(chip.kernels, chips.at("sm_90").kernels) << name;
    EXPECT_GT(chip.most_registers, 0) << name;
    EXPECT_EQ(chip.spilled_bytes, 0) << name << "; each kernel: " << log;
  }
}

}  // namespace
}  // namespace caesura::testing
