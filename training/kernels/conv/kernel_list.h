// SPDX-License-Identifier: Apache-2.0
// The conv kernels that training adds: one function a source file, in order of preference.
#ifndef CAESURA_TRAINING_KERNELS_CONV_KERNEL_LIST_H_
#define CAESURA_TRAINING_KERNELS_CONV_KERNEL_LIST_H_

#include "core/kernels/kernel_registry.h"

namespace caesura {

void RegisterConvGrad(KernelRegistry& registry);
void RegisterConvDeformGrad(KernelRegistry& registry);
void RegisterPoolGrad(KernelRegistry& registry);

inline void RegisterConvGradKernels(KernelRegistry& registry) {
  for (auto* add : {RegisterConvGrad, RegisterConvDeformGrad, RegisterPoolGrad}) {
    add(registry);
  }
}

}  // namespace caesura

#endif  // CAESURA_TRAINING_KERNELS_CONV_KERNEL_LIST_H_
