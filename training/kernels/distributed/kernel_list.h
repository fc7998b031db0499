// SPDX-License-Identifier: Apache-2.0
// The kernels of a step that several ranks do together.
#ifndef CAESURA_TRAINING_KERNELS_DISTRIBUTED_KERNEL_LIST_H_
#define CAESURA_TRAINING_KERNELS_DISTRIBUTED_KERNEL_LIST_H_

#include "core/kernels/kernel_registry.h"

namespace caesura {

void RegisterCollectives(KernelRegistry& registry);

inline void RegisterDistributedKernels(KernelRegistry& registry) { RegisterCollectives(registry); }

}  // namespace caesura

#endif  // CAESURA_TRAINING_KERNELS_DISTRIBUTED_KERNEL_LIST_H_
