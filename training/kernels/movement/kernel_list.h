// SPDX-License-Identifier: Apache-2.0
// The movement kernels that training adds: one function a source file, in order of preference.
#ifndef CAESURA_TRAINING_KERNELS_MOVEMENT_KERNEL_LIST_H_
#define CAESURA_TRAINING_KERNELS_MOVEMENT_KERNEL_LIST_H_

#include "core/kernels/kernel_registry.h"

namespace caesura {

void RegisterMovementGrad(KernelRegistry& registry);

inline void RegisterMovementGradKernels(KernelRegistry& registry) {
  RegisterMovementGrad(registry);
}

}  // namespace caesura

#endif  // CAESURA_TRAINING_KERNELS_MOVEMENT_KERNEL_LIST_H_
