// SPDX-License-Identifier: Apache-2.0
// The CUDA kernels: one function a source file.
#ifndef CAESURA_CORE_KERNELS_CUDA_KERNEL_LIST_H_
#define CAESURA_CORE_KERNELS_CUDA_KERNEL_LIST_H_

#include <memory>

#include "core/kernels/kernel_registry.h"

namespace caesura {

class CudaDevice;  // core/cuda/cuda_device.h
using CudaDevicePtr = std::shared_ptr<CudaDevice>;

void RegisterCudaElementwise(KernelRegistry& registry, const CudaDevicePtr& device);
void RegisterCudaIntegerDivision(KernelRegistry& registry, const CudaDevicePtr& device);
void RegisterCudaCastAll(KernelRegistry& registry, const CudaDevicePtr& device);
void RegisterCudaFusedRows(KernelRegistry& registry, const CudaDevicePtr& device);
void RegisterCudaProducts(KernelRegistry& registry, const CudaDevicePtr& device);
void RegisterCudaMovement(KernelRegistry& registry, const CudaDevicePtr& device);
void RegisterCudaPlacement(KernelRegistry& registry, const CudaDevicePtr& device);
void RegisterCudaReductions(KernelRegistry& registry, const CudaDevicePtr& device);
void RegisterCudaGather(KernelRegistry& registry, const CudaDevicePtr& device);
void RegisterCudaDropout(KernelRegistry& registry, const CudaDevicePtr& device);
void RegisterCudaAttention(KernelRegistry& registry, const CudaDevicePtr& device);
void RegisterCudaConv(KernelRegistry& registry, const CudaDevicePtr& device);
void RegisterCudaPool(KernelRegistry& registry, const CudaDevicePtr& device);
void RegisterCudaBatchNorm(KernelRegistry& registry, const CudaDevicePtr& device);
void RegisterCudaLoss(KernelRegistry& registry, const CudaDevicePtr& device);
void RegisterCudaCollectives(KernelRegistry& registry, const CudaDevicePtr& device);
void RegisterCudaUpdates(KernelRegistry& registry, const CudaDevicePtr& device);
void RegisterCudaLamb(KernelRegistry& registry, const CudaDevicePtr& device);
void RegisterCudaGradientScale(KernelRegistry& registry, const CudaDevicePtr& device);
// True if the kernel writes nothing where CudaDevice::gate() or the cell of errors forbids it.
bool LooksAtGate(const KernelDef& kernel);

inline void RegisterCudaKernels(KernelRegistry& registry, const CudaDevicePtr& device) {
  for (auto* add : {RegisterCudaElementwise, RegisterCudaIntegerDivision, RegisterCudaCastAll,
                    RegisterCudaFusedRows, RegisterCudaProducts, RegisterCudaMovement,
                    RegisterCudaPlacement, RegisterCudaReductions, RegisterCudaGather,
                    RegisterCudaDropout, RegisterCudaAttention, RegisterCudaConv, RegisterCudaPool,
                    RegisterCudaBatchNorm, RegisterCudaLoss, RegisterCudaCollectives,
                    RegisterCudaUpdates, RegisterCudaLamb, RegisterCudaGradientScale}) {
    add(registry, device);
  }
}

}  // namespace caesura

#endif  // CAESURA_CORE_KERNELS_CUDA_KERNEL_LIST_H_
