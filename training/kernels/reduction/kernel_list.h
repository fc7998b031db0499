// SPDX-License-Identifier: Apache-2.0
// The reduction kernels that training adds: one function a source file, in order of preference.
#ifndef CAESURA_TRAINING_KERNELS_REDUCTION_KERNEL_LIST_H_
#define CAESURA_TRAINING_KERNELS_REDUCTION_KERNEL_LIST_H_

#include "core/kernels/kernel_registry.h"

namespace caesura {

void RegisterSumTo(KernelRegistry& registry);
void RegisterProductGrad(KernelRegistry& registry);

inline void RegisterReductionGradKernels(KernelRegistry& registry) {
  for (auto* add : {RegisterSumTo, RegisterProductGrad}) {
    add(registry);
  }
}

}  // namespace caesura

#endif  // CAESURA_TRAINING_KERNELS_REDUCTION_KERNEL_LIST_H_
