// SPDX-License-Identifier: Apache-2.0
// The random kernels: one function a source file, in order of preference.
#ifndef CAESURA_CORE_KERNELS_CPU_RANDOM_KERNEL_LIST_H_
#define CAESURA_CORE_KERNELS_CPU_RANDOM_KERNEL_LIST_H_

#include "core/kernels/kernel_registry.h"

namespace caesura {

void RegisterRandom(KernelRegistry& registry);
void RegisterDropout(KernelRegistry& registry);

inline void RegisterRandomKernels(KernelRegistry& registry) {
  for (auto* add : {RegisterRandom, RegisterDropout}) {
    add(registry);
  }
}

}  // namespace caesura

#endif  // CAESURA_CORE_KERNELS_CPU_RANDOM_KERNEL_LIST_H_
