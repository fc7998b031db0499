// SPDX-License-Identifier: Apache-2.0
// The attention kernels that training adds: one function a source file, in order of preference.
#ifndef CAESURA_TRAINING_KERNELS_ATTENTION_KERNEL_LIST_H_
#define CAESURA_TRAINING_KERNELS_ATTENTION_KERNEL_LIST_H_

#include "core/kernels/kernel_registry.h"

namespace caesura {

void RegisterAttentionGrad(KernelRegistry& registry);

inline void RegisterAttentionGradKernels(KernelRegistry& registry) {
  RegisterAttentionGrad(registry);
}

}  // namespace caesura

#endif  // CAESURA_TRAINING_KERNELS_ATTENTION_KERNEL_LIST_H_
