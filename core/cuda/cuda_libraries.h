// SPDX-License-Identifier: Apache-2.0
// Tables of the functions of libcuda, NVRTC, cuBLASLt, cuDNN and NCCL, opened at run time.
//
// Members have the functions' own names: `libraries.driver.cuMemAllocAsync(...)`. The driver's are
// asked for at the version of the header that this file was built with.
#ifndef CAESURA_CORE_CUDA_CUDA_LIBRARIES_H_
#define CAESURA_CORE_CUDA_CUDA_LIBRARIES_H_

#include <cuda.h>
#include <nvrtc.h>

#include <memory>
#include <optional>
#include <string>

#include "core/base/status.h"
#include "core/cuda/cublas_lt.h"
#include "core/cuda/cuda_options.h"
#include "core/cuda/cudnn.h"
#include "core/cuda/nccl.h"

// clang-format off
#define CAESURA_CUDA_DRIVER_FUNCTIONS(F)                                                    \
  F(cuInit) F(cuGetErrorName) F(cuGetErrorString) F(cuDeviceGetCount) F(cuDeviceGet)        \
  F(cuDeviceGetAttribute) F(cuDevicePrimaryCtxRetain) F(cuDevicePrimaryCtxRelease)          \
  F(cuCtxGetCurrent) F(cuCtxSetCurrent) F(cuStreamCreate) F(cuStreamDestroy)                \
  F(cuStreamSynchronize) F(cuMemPoolCreate) F(cuMemPoolDestroy) F(cuMemPoolSetAttribute)    \
  F(cuMemAllocFromPoolAsync) F(cuMemFreeAsync) F(cuMemcpyHtoDAsync) F(cuMemcpyDtoHAsync)    \
  F(cuMemcpyDtoDAsync) F(cuMemsetD8Async) F(cuModuleLoadDataEx) F(cuModuleUnload)           \
  F(cuModuleGetFunction) F(cuLaunchKernel) F(cuEventCreate) F(cuEventDestroy)               \
  F(cuEventRecord) F(cuEventQuery) F(cuStreamWaitEvent) F(cuStreamWaitValue32)              \
  F(cuMemHostAlloc) F(cuMemFreeHost) F(cuFuncLoad)

#define CAESURA_NVRTC_FUNCTIONS(F)                                                            \
  F(nvrtcVersion) F(nvrtcGetErrorString) F(nvrtcCreateProgram) F(nvrtcDestroyProgram)         \
  F(nvrtcCompileProgram) F(nvrtcGetProgramLogSize) F(nvrtcGetProgramLog) F(nvrtcGetCUBINSize) \
  F(nvrtcGetCUBIN)
// clang-format on

namespace caesura {

// Thread safety: immutable once opened. The libraries stay open until the process ends, for the
// driver keeps threads and contexts of its own.
struct CudaLibraries {
  struct {
#define CAESURA_MEMBER(name) decltype(&::name) name = nullptr;
    CAESURA_CUDA_DRIVER_FUNCTIONS(CAESURA_MEMBER)
  } driver;
  struct {
    CAESURA_NVRTC_FUNCTIONS(CAESURA_MEMBER)
#undef CAESURA_MEMBER
  } nvrtc;
  struct {
#define CAESURA_MEMBER(name, arguments) cublas_lt::Status(*name) arguments = nullptr;
    CAESURA_CUBLAS_LT_FUNCTIONS(CAESURA_MEMBER)
#undef CAESURA_MEMBER
  } cublas_lt;
  std::optional<cudnn::Functions> cudnn;  // nothing where it is not installed, or too old
  std::string why_no_cudnn;               // one sentence, where it is nothing
};

// Fails with kUnsupported and one sentence: which library or function is missing, and what would
// help. cuDNN may be missing unless it is named; one that is too old counts as missing.
Result<std::shared_ptr<const CudaLibraries>> OpenCudaLibraries(const CudaLibraryNames& names);

// cuDNN by itself, 9.16 or newer: gradients of attention are wrong in older ones where the number
// of keys is no multiple of 128.
Result<cudnn::Functions> OpenCudnn(const std::string& name);

struct NcclFunctions {
#define CAESURA_MEMBER(name, arguments) nccl::Result(*name) arguments = nullptr;
  CAESURA_NCCL_FUNCTIONS(CAESURA_MEMBER)
#undef CAESURA_MEMBER
  const char* (*GetErrorString)(nccl::Result) = nullptr;
  const char* (*GetLastError)(nccl::Comm) = nullptr;
};
// As OpenCudaLibraries; what only ranks need is opened by them.
Result<NcclFunctions> OpenNccl(const CudaLibraryNames& names);

}  // namespace caesura

#endif  // CAESURA_CORE_CUDA_CUDA_LIBRARIES_H_
