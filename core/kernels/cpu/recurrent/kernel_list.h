// SPDX-License-Identifier: Apache-2.0
// The recurrent kernels: one function a source file, in order of preference.
#ifndef CAESURA_CORE_KERNELS_CPU_RECURRENT_KERNEL_LIST_H_
#define CAESURA_CORE_KERNELS_CPU_RECURRENT_KERNEL_LIST_H_

#include "core/kernels/kernel_registry.h"

namespace caesura {

void RegisterRecurrent(KernelRegistry& registry);
void RegisterRecurrentQuantized(KernelRegistry& registry);

inline void RegisterRecurrentKernels(KernelRegistry& registry) {
  for (auto* add : {RegisterRecurrent, RegisterRecurrentQuantized}) {
    add(registry);
  }
}

}  // namespace caesura

#endif  // CAESURA_CORE_KERNELS_CPU_RECURRENT_KERNEL_LIST_H_
