// SPDX-License-Identifier: Apache-2.0
// The conv kernels: one function a source file, in order of preference.
#ifndef CAESURA_CORE_KERNELS_CPU_CONV_KERNEL_LIST_H_
#define CAESURA_CORE_KERNELS_CPU_CONV_KERNEL_LIST_H_

#include "core/kernels/kernel_registry.h"

namespace caesura {

void RegisterConv(KernelRegistry& registry);
void RegisterConvTranspose(KernelRegistry& registry);
void RegisterConvInteger(KernelRegistry& registry);
void RegisterConvDeform(KernelRegistry& registry);
void RegisterConvCausal(KernelRegistry& registry);
void RegisterCol2Im(KernelRegistry& registry);
void RegisterPool(KernelRegistry& registry);
void RegisterPoolGlobal(KernelRegistry& registry);

inline void RegisterConvKernels(KernelRegistry& registry) {
  for (auto* add : {RegisterConv, RegisterConvTranspose, RegisterConvInteger, RegisterConvDeform,
                    RegisterConvCausal, RegisterCol2Im, RegisterPool, RegisterPoolGlobal}) {
    add(registry);
  }
}

}  // namespace caesura

#endif  // CAESURA_CORE_KERNELS_CPU_CONV_KERNEL_LIST_H_
