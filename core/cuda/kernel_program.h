// SPDX-License-Identifier: Apache-2.0
// Kernels compiled by NVRTC for one chip, and kept on disk (kernel_cache.h).
#ifndef CAESURA_CORE_CUDA_KERNEL_PROGRAM_H_
#define CAESURA_CORE_CUDA_KERNEL_PROGRAM_H_

#include <optional>
#include <string>
#include <vector>

#include "core/cuda/cuda_libraries.h"

namespace caesura {

// All that the code follows from, but for NVRTC's version. The source includes nothing: it
// holds the text of the files that it is made of (WithCudaFiles), and so does the key.
struct KernelProgram {
  std::string source;
  std::string architecture;  // "sm_90"
  // Products and sums are not contracted beyond what the source says: the CPU's kernels and these
  // differ by rounding of functions only.
  std::vector<std::string> options = {"--std=c++17", "--fmad=false"};
};

// The kernel's key in the cache. Empty if NVRTC does not tell its version.
std::string KernelKey(const CudaLibraries& libraries, const KernelProgram& program);

// The code as it was kept on disk, or nothing.
std::optional<std::string> KeptKernel(const CudaLibraries& libraries, const KernelProgram& program);

// Compiles the program and keeps its code on disk. Fails with kInternal and NVRTC's words where it
// does not take the source; nothing is kept then. Thread safety: from any thread.
Result<std::string> CompileKernel(const CudaLibraries& libraries, const KernelProgram& program);

}  // namespace caesura

#endif  // CAESURA_CORE_CUDA_KERNEL_PROGRAM_H_
