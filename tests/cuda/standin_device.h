// SPDX-License-Identifier: Apache-2.0
// A stand-in device for a test: reset, initialized, its context current.
#pragma once
#include <cuda.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <cstdint>
#include <string>
#include <vector>
#include "standin.h"

namespace standin_test {

inline constexpr std::uint64_t kSeeds = 16;

#define ASSERT_CUDA(CALL) ASSERT_EQ(CALL, CUDA_SUCCESS) << #CALL
#define EXPECT_CUDA(CALL) EXPECT_EQ(CALL, CUDA_SUCCESS) << #CALL

/// All reports since the last reset, a line each.
std::string Reports();

/// The file's text, from the folder of example kernels.
std::string KernelText(const std::string& file);

/// Compiles with the stand-in NVRTC for sm_90; the image is empty on failure, which is also added
/// as a test failure.
struct Program {
  std::string image;
  std::vector<std::string> lowered;  // of the expressions
};
Program Compile(const std::string& text, const std::vector<std::string>& expressions = {},
                const std::vector<std::string>& options = {});

class Device {
 public:
  explicit Device(std::uint64_t seed);
  CUstream Stream();
  CUevent Event();
  CUdeviceptr Memory(std::size_t bytes);
  float* Pinned(std::size_t count);
  CUfunction Load(const Program& program, const std::string& name);
};

/// cuLaunchKernel with a grid and a block of one dimension.
template <typename... A>
CUresult Launch(CUfunction function, unsigned grid, unsigned block, unsigned shared,
                CUstream stream, A... arguments) {
  void* pointers[] = {&arguments...};
  return cuLaunchKernel(function, grid, 1, 1, block, 1, 1, shared, stream, pointers, nullptr);
}

}  // namespace standin_test
