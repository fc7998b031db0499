// SPDX-License-Identifier: Apache-2.0
// The reduction kernels: one function a source file, in order of preference.
#ifndef CAESURA_CORE_KERNELS_CPU_REDUCTION_KERNEL_LIST_H_
#define CAESURA_CORE_KERNELS_CPU_REDUCTION_KERNEL_LIST_H_

#include "core/kernels/kernel_registry.h"

namespace caesura {

void RegisterReduce(KernelRegistry& registry);
void RegisterReduceExtreme(KernelRegistry& registry);
void RegisterAlongAxis(KernelRegistry& registry);

inline void RegisterReductionKernels(KernelRegistry& registry) {
  for (auto* add : {RegisterReduce, RegisterReduceExtreme, RegisterAlongAxis}) {
    add(registry);
  }
}

}  // namespace caesura

#endif  // CAESURA_CORE_KERNELS_CPU_REDUCTION_KERNEL_LIST_H_
