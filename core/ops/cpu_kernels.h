// SPDX-License-Identifier: Apache-2.0
// The CPU provider's kernels.
#ifndef CAESURA_CORE_OPS_CPU_KERNELS_H_
#define CAESURA_CORE_OPS_CPU_KERNELS_H_

#include "core/kernels/kernel_registry.h"

namespace caesura {

// All families' (core/ops/families.inc).
void RegisterCpuKernels(KernelRegistry& registry);

}  // namespace caesura

#endif  // CAESURA_CORE_OPS_CPU_KERNELS_H_
