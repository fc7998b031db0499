// SPDX-License-Identifier: Apache-2.0
// The elementwise kernels: one function a source file, in order of preference.
#ifndef CAESURA_CORE_KERNELS_CPU_ELEMENTWISE_KERNEL_LIST_H_
#define CAESURA_CORE_KERNELS_CPU_ELEMENTWISE_KERNEL_LIST_H_

#include "core/kernels/kernel_registry.h"

namespace caesura {

void RegisterUnary(KernelRegistry& registry);
void RegisterActivation(KernelRegistry& registry);
void RegisterIdentity(KernelRegistry& registry);
void RegisterClip(KernelRegistry& registry);
void RegisterBinary(KernelRegistry& registry);
void RegisterPowMod(KernelRegistry& registry);
void RegisterVariadic(KernelRegistry& registry);
void RegisterLogic(KernelRegistry& registry);
void RegisterCast(KernelRegistry& registry);
void RegisterQuantize(KernelRegistry& registry);

inline void RegisterElementwiseKernels(KernelRegistry& registry) {
  for (auto* add :
       {RegisterUnary, RegisterActivation, RegisterIdentity, RegisterClip, RegisterBinary,
        RegisterPowMod, RegisterVariadic, RegisterLogic, RegisterCast, RegisterQuantize}) {
    add(registry);
  }
}

}  // namespace caesura

#endif  // CAESURA_CORE_KERNELS_CPU_ELEMENTWISE_KERNEL_LIST_H_
