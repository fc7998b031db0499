// SPDX-License-Identifier: Apache-2.0
// The normalization kernels that training adds: one function a source file, in order of preference.
#ifndef CAESURA_TRAINING_KERNELS_NORMALIZATION_KERNEL_LIST_H_
#define CAESURA_TRAINING_KERNELS_NORMALIZATION_KERNEL_LIST_H_

#include "core/kernels/kernel_registry.h"

namespace caesura {

void RegisterRowNormGrad(KernelRegistry& registry);
void RegisterBatchNormGrad(KernelRegistry& registry);
void RegisterGroupNormGrad(KernelRegistry& registry);
void RegisterLossGrad(KernelRegistry& registry);
void RegisterCtcLoss(KernelRegistry& registry);

inline void RegisterNormalizationGradKernels(KernelRegistry& registry) {
  for (auto* add : {RegisterRowNormGrad, RegisterBatchNormGrad, RegisterGroupNormGrad,
                    RegisterLossGrad, RegisterCtcLoss}) {
    add(registry);
  }
}

}  // namespace caesura

#endif  // CAESURA_TRAINING_KERNELS_NORMALIZATION_KERNEL_LIST_H_
