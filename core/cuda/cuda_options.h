// SPDX-License-Identifier: Apache-2.0
// A user's choices about a GPU. This header needs no header of CUDA's.
#ifndef CAESURA_CORE_CUDA_CUDA_OPTIONS_H_
#define CAESURA_CORE_CUDA_CUDA_OPTIONS_H_

#include <cstddef>
#include <functional>
#include <memory>
#include <string>

#include "core/base/status.h"

namespace caesura {

class CudaDevice;      // cuda_device.h
class KernelRegistry;  // core/kernels/kernel_registry.h

// File names or paths, as dlopen takes them. An empty name stands for the usual ones: a library
// that the process has already loaded (PyTorch's) is preferred to another copy of it.
struct CudaLibraryNames {
  std::string driver;     // libcuda.so.1
  std::string nvrtc;      // libnvrtc.so.13, libnvrtc.so.12
  std::string cublas_lt;  // libcublasLt.so.13, libcublasLt.so.12
  std::string cudnn;      // libcudnn.so.9; without it, kernels of caesura's own do its work
  std::string nccl = {};  // libnccl.so.2; for NcclCommunicator only
};

// The options of a CUDA provider: device, memory limit, stream and libraries. The provider copies
// them.
struct CudaOptions {
  int device_id = 0;
  // Products of float32 may round their factors to TF32's 10 bits, for tensor cores.
  bool tf32 = false;
  // Bytes that the provider's allocations may take together; 0: all that the device has.
  size_t memory_limit = 0;
  // The caller's stream (a CUstream or cudaStream_t), which must outlive the provider; null: a
  // stream of the provider's own.
  void* stream = nullptr;
  CudaLibraryNames libraries = {};
  // Memory of the caller's, in place of a pool of the provider's own: so many bytes at an address
  // that is a multiple of 256, for work on `stream` from then on. The last copy of what it returns
  // gives them back, when all work on them has been put on the stream.
  std::function<Result<std::shared_ptr<void>>(size_t)> allocate = {};
  // Adds kernels to the built-in ones (those of training).
  std::function<void(KernelRegistry&, const std::shared_ptr<CudaDevice>&)> more = {};
};

}  // namespace caesura

#endif  // CAESURA_CORE_CUDA_CUDA_OPTIONS_H_
