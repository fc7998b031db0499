// SPDX-License-Identifier: Apache-2.0
// The image kernels that training adds: one function a source file, in order of preference.
#ifndef CAESURA_TRAINING_KERNELS_IMAGE_KERNEL_LIST_H_
#define CAESURA_TRAINING_KERNELS_IMAGE_KERNEL_LIST_H_

#include "core/kernels/kernel_registry.h"

namespace caesura {

void RegisterResizeGrad(KernelRegistry& registry);
void RegisterRoiGrad(KernelRegistry& registry);

inline void RegisterImageGradKernels(KernelRegistry& registry) {
  for (auto* add : {RegisterResizeGrad, RegisterRoiGrad}) {
    add(registry);
  }
}

}  // namespace caesura

#endif  // CAESURA_TRAINING_KERNELS_IMAGE_KERNEL_LIST_H_
