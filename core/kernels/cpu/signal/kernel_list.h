// SPDX-License-Identifier: Apache-2.0
// The signal kernels: one function a source file, in order of preference.
#ifndef CAESURA_CORE_KERNELS_CPU_SIGNAL_KERNEL_LIST_H_
#define CAESURA_CORE_KERNELS_CPU_SIGNAL_KERNEL_LIST_H_

#include "core/kernels/kernel_registry.h"

namespace caesura {

void RegisterDft(KernelRegistry& registry);
void RegisterWindow(KernelRegistry& registry);

inline void RegisterSignalKernels(KernelRegistry& registry) {
  for (auto* add : {RegisterDft, RegisterWindow}) {
    add(registry);
  }
}

}  // namespace caesura

#endif  // CAESURA_CORE_KERNELS_CPU_SIGNAL_KERNEL_LIST_H_
