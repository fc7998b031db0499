// SPDX-License-Identifier: Apache-2.0
// The CUDA provider's kernels.
#ifndef CAESURA_CORE_OPS_CUDA_KERNELS_H_
#define CAESURA_CORE_OPS_CUDA_KERNELS_H_

#include <memory>

#include "core/kernels/kernel_registry.h"

namespace caesura {

class CudaDevice;  // core/cuda/cuda_device.h

// All families' (core/ops/families.inc), which run on the device.
void RegisterCudaKernels(KernelRegistry& registry, const std::shared_ptr<CudaDevice>& device);
// True if the kernel writes nothing where CudaDevice::gate() or the cell of errors forbids it.
bool LooksAtGate(const KernelDef& kernel);

}  // namespace caesura

#endif  // CAESURA_CORE_OPS_CUDA_KERNELS_H_
