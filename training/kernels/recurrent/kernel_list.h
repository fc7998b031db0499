// SPDX-License-Identifier: Apache-2.0
// The recurrent kernels that training adds: one function a source file, in order of preference.
#ifndef CAESURA_TRAINING_KERNELS_RECURRENT_KERNEL_LIST_H_
#define CAESURA_TRAINING_KERNELS_RECURRENT_KERNEL_LIST_H_

#include "core/kernels/kernel_registry.h"

namespace caesura {

void RegisterRecurrentGrad(KernelRegistry& registry);

inline void RegisterRecurrentGradKernels(KernelRegistry& registry) {
  RegisterRecurrentGrad(registry);
}

}  // namespace caesura

#endif  // CAESURA_TRAINING_KERNELS_RECURRENT_KERNEL_LIST_H_
