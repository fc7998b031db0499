// SPDX-License-Identifier: Apache-2.0
#include "core/ops/cuda_kernels.h"

namespace caesura {

#define FAMILY(name, parts) parts
#define OPS(part)
#define CPU(part)
#define CUDA(part) \
  void RegisterCuda##part(KernelRegistry& registry, const std::shared_ptr<CudaDevice>& device);
#include "core/ops/families.inc"
#undef CUDA

void RegisterCudaKernels(KernelRegistry& registry, const std::shared_ptr<CudaDevice>& device) {
#define CUDA(part) RegisterCuda##part(registry, device);
#include "core/ops/families.inc"
}

}  // namespace caesura
