// SPDX-License-Identifier: Apache-2.0
// The CPU provider's kernels. Each folder beside this file is a family with a kernel_list.h of its
// own; simd and adapters hold what families share.
#ifndef CAESURA_CORE_KERNELS_CPU_KERNEL_LIST_H_
#define CAESURA_CORE_KERNELS_CPU_KERNEL_LIST_H_

#include "core/kernels/kernel_registry.h"

namespace caesura {

// All families, in order of preference where several serve one op.
void RegisterCpuKernels(KernelRegistry& registry);

}  // namespace caesura

#endif  // CAESURA_CORE_KERNELS_CPU_KERNEL_LIST_H_
