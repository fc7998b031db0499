// SPDX-License-Identifier: Apache-2.0
// The gemm kernels: one function a source file, in order of preference.
#ifndef CAESURA_CORE_KERNELS_CPU_GEMM_KERNEL_LIST_H_
#define CAESURA_CORE_KERNELS_CPU_GEMM_KERNEL_LIST_H_

#include "core/kernels/kernel_registry.h"

namespace caesura {

void RegisterMatMul(KernelRegistry& registry);
void RegisterMatMulInteger(KernelRegistry& registry);
void RegisterEinsum(KernelRegistry& registry);
void RegisterDet(KernelRegistry& registry);

inline void RegisterGemmKernels(KernelRegistry& registry) {
  for (auto* add : {RegisterMatMul, RegisterMatMulInteger, RegisterEinsum, RegisterDet}) {
    add(registry);
  }
}

}  // namespace caesura

#endif  // CAESURA_CORE_KERNELS_CPU_GEMM_KERNEL_LIST_H_
