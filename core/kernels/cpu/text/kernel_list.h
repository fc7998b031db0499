// SPDX-License-Identifier: Apache-2.0
// The text kernels: one function a source file, in order of preference.
#ifndef CAESURA_CORE_KERNELS_CPU_TEXT_KERNEL_LIST_H_
#define CAESURA_CORE_KERNELS_CPU_TEXT_KERNEL_LIST_H_

#include "core/kernels/kernel_registry.h"

namespace caesura {

void RegisterText(KernelRegistry& registry);
void RegisterNgram(KernelRegistry& registry);

inline void RegisterTextKernels(KernelRegistry& registry) {
  for (auto* add : {RegisterText, RegisterNgram}) {
    add(registry);
  }
}

}  // namespace caesura

#endif  // CAESURA_CORE_KERNELS_CPU_TEXT_KERNEL_LIST_H_
