// SPDX-License-Identifier: Apache-2.0
// The collectives of a step whose communicator exchanges a GPU's memory (NcclCommunicator).
#include "core/cuda/cuda_device.h"
#include "core/kernels/cuda/kernel_list.h"
#include "core/kernels/spec/collectives.h"

namespace caesura {

void RegisterCudaCollectives(KernelRegistry& registry, const CudaDevicePtr& device) {
  RegisterCollectives(registry, [device](void* to, const void* from, size_t bytes) {
    return device->CopyWithin(to, from, bytes);
  });
}

}  // namespace caesura
