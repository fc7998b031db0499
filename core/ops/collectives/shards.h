// SPDX-License-Identifier: Apache-2.0
// ReduceScatterStart, ReduceScatterWait, OwnPart, AllGatherStart, AllGatherWait: a bucket of
// tensors of which each rank keeps and updates one part (core/distributed/bucket_layout.h).
// OrderedSumStart, OrderedSumWait: a bucket of which each rank sums one part, in an order that is
// always the same. In host memory.
#ifndef CAESURA_CORE_OPS_COLLECTIVES_SHARDS_H_
#define CAESURA_CORE_OPS_COLLECTIVES_SHARDS_H_

#include "core/kernels/kernel_registry.h"

namespace caesura {

void RegisterShards(KernelRegistry& registry);

}  // namespace caesura

#endif  // CAESURA_CORE_OPS_COLLECTIVES_SHARDS_H_
