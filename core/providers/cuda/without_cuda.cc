// SPDX-License-Identifier: Apache-2.0
// In place of the CUDA provider and of NCCL's ranks where the build found no headers of CUDA's.
#include "core/distributed/communicator.h"
#include "core/providers/cuda/cuda_provider.h"

namespace caesura {

Result<std::shared_ptr<const ExecutionProvider>> MakeCudaProvider(const CudaOptions&) {
  return Unsupported("this build has no CUDA provider: it was configured without CUDA_HEADERS_DIR");
}

Result<int> CudaDeviceCount(const CudaLibraryNames&) {
  return Unsupported("this build has no CUDA provider: it was configured without CUDA_HEADERS_DIR");
}

Status OrderStreams(const ExecutionProvider&, void*, void*) { return {}; }

Result<std::unique_ptr<Communicator>> NcclCommunicator(std::unique_ptr<Communicator>,
                                                       const CudaOptions&) {
  return Unsupported("this build has no NCCL: it was configured without CUDA_HEADERS_DIR");
}

}  // namespace caesura
