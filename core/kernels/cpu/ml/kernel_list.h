// SPDX-License-Identifier: Apache-2.0
// The ml kernels: one function a source file, in order of preference.
#ifndef CAESURA_CORE_KERNELS_CPU_ML_KERNEL_LIST_H_
#define CAESURA_CORE_KERNELS_CPU_ML_KERNEL_LIST_H_

#include "core/kernels/kernel_registry.h"

namespace caesura {

void RegisterFeatures(KernelRegistry& registry);
void RegisterLabel(KernelRegistry& registry);
void RegisterLinearModel(KernelRegistry& registry);
void RegisterMap(KernelRegistry& registry);
void RegisterSvm(KernelRegistry& registry);
void RegisterTreeModel(KernelRegistry& registry);

inline void RegisterMlKernels(KernelRegistry& registry) {
  for (auto* add : {RegisterFeatures, RegisterLabel, RegisterLinearModel, RegisterMap, RegisterSvm,
                    RegisterTreeModel}) {
    add(registry);
  }
}

}  // namespace caesura

#endif  // CAESURA_CORE_KERNELS_CPU_ML_KERNEL_LIST_H_
