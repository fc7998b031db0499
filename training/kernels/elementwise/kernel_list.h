// SPDX-License-Identifier: Apache-2.0
// The elementwise kernels that training adds: one function a source file, in order of preference.
#ifndef CAESURA_TRAINING_KERNELS_ELEMENTWISE_KERNEL_LIST_H_
#define CAESURA_TRAINING_KERNELS_ELEMENTWISE_KERNEL_LIST_H_

#include "core/kernels/kernel_registry.h"

namespace caesura {

void RegisterActivationGrad(KernelRegistry& registry);

inline void RegisterElementwiseGradKernels(KernelRegistry& registry) {
  RegisterActivationGrad(registry);
}

}  // namespace caesura

#endif  // CAESURA_TRAINING_KERNELS_ELEMENTWISE_KERNEL_LIST_H_
