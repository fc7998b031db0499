// SPDX-License-Identifier: Apache-2.0
// The fused rows kernels: one function a source file, in order of preference.
#ifndef CAESURA_CORE_KERNELS_CPU_FUSED_ROWS_KERNEL_LIST_H_
#define CAESURA_CORE_KERNELS_CPU_FUSED_ROWS_KERNEL_LIST_H_

#include "core/kernels/kernel_registry.h"

namespace caesura {

void RegisterFusedRows(KernelRegistry& registry);

inline void RegisterFusedRowsKernels(KernelRegistry& registry) { RegisterFusedRows(registry); }

}  // namespace caesura

#endif  // CAESURA_CORE_KERNELS_CPU_FUSED_ROWS_KERNEL_LIST_H_
