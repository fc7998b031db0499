// SPDX-License-Identifier: Apache-2.0
// The normalization kernels: one function a source file, in order of preference.
#ifndef CAESURA_CORE_KERNELS_CPU_NORMALIZATION_KERNEL_LIST_H_
#define CAESURA_CORE_KERNELS_CPU_NORMALIZATION_KERNEL_LIST_H_

#include "core/kernels/kernel_registry.h"

namespace caesura {

void RegisterRowNorm(KernelRegistry& registry);
void RegisterSoftmax(KernelRegistry& registry);
void RegisterBatchNorm(KernelRegistry& registry);
void RegisterLpNorm(KernelRegistry& registry);
void RegisterLoss(KernelRegistry& registry);

inline void RegisterNormalizationKernels(KernelRegistry& registry) {
  for (auto* add :
       {RegisterRowNorm, RegisterSoftmax, RegisterBatchNorm, RegisterLpNorm, RegisterLoss}) {
    add(registry);
  }
}

}  // namespace caesura

#endif  // CAESURA_CORE_KERNELS_CPU_NORMALIZATION_KERNEL_LIST_H_
