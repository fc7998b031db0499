// SPDX-License-Identifier: Apache-2.0
// The optimizer kernels that training adds: one function a source file, in order of preference.
#ifndef CAESURA_TRAINING_KERNELS_OPTIMIZER_KERNEL_LIST_H_
#define CAESURA_TRAINING_KERNELS_OPTIMIZER_KERNEL_LIST_H_

#include "core/kernels/kernel_registry.h"

namespace caesura {

void RegisterOptimizerUpdate(KernelRegistry& registry);
void RegisterLambUpdate(KernelRegistry& registry);
void RegisterGradientScale(KernelRegistry& registry);
void RegisterOnnxTraining(KernelRegistry& registry);

inline void RegisterOptimizerKernels(KernelRegistry& registry) {
  for (auto* add :
       {RegisterOptimizerUpdate, RegisterLambUpdate, RegisterGradientScale, RegisterOnnxTraining}) {
    add(registry);
  }
}

}  // namespace caesura

#endif  // CAESURA_TRAINING_KERNELS_OPTIMIZER_KERNEL_LIST_H_
