// SPDX-License-Identifier: Apache-2.0
// The movement kernels: one function a source file, in order of preference.
#ifndef CAESURA_CORE_KERNELS_CPU_MOVEMENT_KERNEL_LIST_H_
#define CAESURA_CORE_KERNELS_CPU_MOVEMENT_KERNEL_LIST_H_

#include "core/kernels/kernel_registry.h"

namespace caesura {

void RegisterMovement(KernelRegistry& registry);
void RegisterSlice(KernelRegistry& registry);
void RegisterPad(KernelRegistry& registry);
void RegisterSelect(KernelRegistry& registry);
void RegisterShapeOps(KernelRegistry& registry);
void RegisterShapeGenerate(KernelRegistry& registry);
void RegisterGather(KernelRegistry& registry);
void RegisterScatter(KernelRegistry& registry);

inline void RegisterMovementKernels(KernelRegistry& registry) {
  for (auto* add : {RegisterMovement, RegisterSlice, RegisterPad, RegisterSelect, RegisterShapeOps,
                    RegisterShapeGenerate, RegisterGather, RegisterScatter}) {
    add(registry);
  }
}

}  // namespace caesura

#endif  // CAESURA_CORE_KERNELS_CPU_MOVEMENT_KERNEL_LIST_H_
