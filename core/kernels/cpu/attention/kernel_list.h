// SPDX-License-Identifier: Apache-2.0
// The attention kernels: one function a source file, in order of preference.
#ifndef CAESURA_CORE_KERNELS_CPU_ATTENTION_KERNEL_LIST_H_
#define CAESURA_CORE_KERNELS_CPU_ATTENTION_KERNEL_LIST_H_

#include "core/kernels/kernel_registry.h"

namespace caesura {

void RegisterAttention(KernelRegistry& registry);
void RegisterRotary(KernelRegistry& registry);
void RegisterLinearAttention(KernelRegistry& registry);

inline void RegisterAttentionKernels(KernelRegistry& registry) {
  for (auto* add : {RegisterAttention, RegisterRotary, RegisterLinearAttention}) {
    add(registry);
  }
}

}  // namespace caesura

#endif  // CAESURA_CORE_KERNELS_CPU_ATTENTION_KERNEL_LIST_H_
