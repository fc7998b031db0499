// SPDX-License-Identifier: Apache-2.0
// The image kernels: one function a source file, in order of preference.
#ifndef CAESURA_CORE_KERNELS_CPU_IMAGE_KERNEL_LIST_H_
#define CAESURA_CORE_KERNELS_CPU_IMAGE_KERNEL_LIST_H_

#include "core/kernels/kernel_registry.h"

namespace caesura {

void RegisterResize(KernelRegistry& registry);
void RegisterGridSample(KernelRegistry& registry);
void RegisterRoi(KernelRegistry& registry);
void RegisterNonMaxSuppression(KernelRegistry& registry);
void RegisterImageDecoder(KernelRegistry& registry);

inline void RegisterImageKernels(KernelRegistry& registry) {
  for (auto* add : {RegisterResize, RegisterGridSample, RegisterRoi, RegisterNonMaxSuppression,
                    RegisterImageDecoder}) {
    add(registry);
  }
}

}  // namespace caesura

#endif  // CAESURA_CORE_KERNELS_CPU_IMAGE_KERNEL_LIST_H_
