// SPDX-License-Identifier: Apache-2.0
// AllReduce, AllGather, ReduceScatter, AllToAll: the exchanges that a model itself has between its
// parts on the ranks, as tensor-parallel models do. In host memory.
#ifndef CAESURA_CORE_OPS_COLLECTIVES_EXCHANGES_H_
#define CAESURA_CORE_OPS_COLLECTIVES_EXCHANGES_H_

#include "core/kernels/kernel_registry.h"

namespace caesura {

void RegisterExchanges(KernelRegistry& registry);

}  // namespace caesura

#endif  // CAESURA_CORE_OPS_COLLECTIVES_EXCHANGES_H_
