// SPDX-License-Identifier: Apache-2.0
// The CUDA provider: one NVIDIA GPU, one stream, kernels that NVRTC compiles for the very chip. And
// NCCL, by which ranks exchange the memory of their GPUs.
//
// The driver, NVRTC and cuBLASLt are opened at run time: the same library runs on machines without
// a GPU, where MakeCudaProvider fails with a sentence that says what is missing.
//
// This header needs no header of CUDA's.
#ifndef CAESURA_CORE_PROVIDERS_CUDA_CUDA_PROVIDER_H_
#define CAESURA_CORE_PROVIDERS_CUDA_CUDA_PROVIDER_H_

#include <map>
#include <memory>
#include <string>

#include "core/base/status.h"
#include "core/cuda/cuda_options.h"
#include "core/providers/execution_provider.h"

namespace caesura {

class Communicator;  // core/distributed/communicator.h

inline constexpr char kCudaProviderName[] = "CUDAExecutionProvider";

// From names and values, as a session's provider options have them: device_id, gpu_mem_limit
// (bytes) and user_compute_stream (an address) as in ONNX Runtime; driver_library, nvrtc_library,
// cublas_lt_library, cudnn_library and nccl_library. Fails with kInvalidArgument on other names and
// on values that are no numbers.
Result<CudaOptions> ParseCudaOptions(const std::map<std::string, std::string>& options);

// Kernels are put on the stream and may run after a call returns; Copy is in order with them.
// Memory is freed in the order of the stream, from any thread. Sums have a fixed order: the same
// bits from run to run on one chip. float32 products do not use TF32.
//
// Fails with kUnsupported where a library or the device is missing, or where this build has no CUDA
// part. The provider's own failures are kProviderFailure.
Result<std::shared_ptr<const ExecutionProvider>> MakeCudaProvider(const CudaOptions& options = {});

// The number of GPUs that this process sees. Fails with kUnsupported where there is no driver, or
// none of them.
Result<int> CudaDeviceCount(const CudaLibraryNames& names = {});

// Work that is put on the stream `after` from here on begins when what `before` has been given
// until now is done. Both are streams of the provider's device (a CUstream or cudaStream_t; null:
// the legacy default stream). The host does not wait. Nothing happens for providers of another
// kind, and where both are the same. Fails with kProviderFailure.
//
// Thread safety: from any thread.
Status OrderStreams(const ExecutionProvider& provider, void* before, void* after);

// Ranks with a GPU each, which exchange its memory through NCCL, without LibTorch. NCCL's library
// is opened at run time. The ranks are those of `control`, which carries NCCL's identity, Gather
// and news of an Abort. All ranks call this together. `options` say which GPU is this rank's, and
// where the libraries are; a stream in them is not used: collectives run on a stream of their own.
//
// Tensors are in the memory of that GPU. Gather waits for all collectives before it, so that a
// failure of one is known then at the latest. Sends and receives begin together at the next Wait,
// Gather or other collective: the order in which two ranks start theirs does not matter.
// int16, uint16, complex numbers and booleans can be moved, but not reduced (kUnsupported).
//
// Fails on all ranks: with kUnsupported where a library or the GPU is missing, on this rank or on
// another; with kInvalidArgument where two ranks have the same GPU.
Result<std::unique_ptr<Communicator>> NcclCommunicator(std::unique_ptr<Communicator> control,
                                                       const CudaOptions& options);

}  // namespace caesura

#endif  // CAESURA_CORE_PROVIDERS_CUDA_CUDA_PROVIDER_H_
