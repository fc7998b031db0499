// SPDX-License-Identifier: Apache-2.0
// The collectives of a step whose communicator exchanges a GPU's memory (NcclCommunicator).
#include "core/kernels/cuda/cuda_kernel.h"
#include "core/kernels/kernel_registry.h"
#include "core/ops/collectives/collectives.h"

namespace caesura {

void RegisterCudaCollectives(KernelRegistry& registry, const CudaDevicePtr& device) {
  AddCollectives(registry, [device](void* to, const void* from, size_t bytes) {
    return device->CopyWithin(to, from, bytes);
  });
}

}  // namespace caesura
