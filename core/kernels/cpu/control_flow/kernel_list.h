// SPDX-License-Identifier: Apache-2.0
// The control flow kernels: one function a source file, in order of preference.
#ifndef CAESURA_CORE_KERNELS_CPU_CONTROL_FLOW_KERNEL_LIST_H_
#define CAESURA_CORE_KERNELS_CPU_CONTROL_FLOW_KERNEL_LIST_H_

#include "core/kernels/kernel_registry.h"

namespace caesura {

void RegisterIfLoop(KernelRegistry& registry);
void RegisterScan(KernelRegistry& registry);
void RegisterSequence(KernelRegistry& registry);
void RegisterOptional(KernelRegistry& registry);

inline void RegisterControlFlowKernels(KernelRegistry& registry) {
  for (auto* add : {RegisterIfLoop, RegisterScan, RegisterSequence, RegisterOptional}) {
    add(registry);
  }
}

}  // namespace caesura

#endif  // CAESURA_CORE_KERNELS_CPU_CONTROL_FLOW_KERNEL_LIST_H_
