// SPDX-License-Identifier: Apache-2.0
// CollectiveStart, CollectiveWait, AgreeToCommit, ValueIfUsed: what the ranks of a step exchange,
// on any device. Only the copy of a device's own bytes differs; the exchange is the communicator's.
#ifndef CAESURA_CORE_OPS_COLLECTIVES_COLLECTIVES_H_
#define CAESURA_CORE_OPS_COLLECTIVES_COLLECTIVES_H_

#include <cstddef>
#include <functional>

#include "core/kernels/kernel.h"
#include "core/kernels/kernel_registry.h"

namespace caesura {

// The collectives of the run. kInvalidArgument where it has none, or other ranks than the `ranks`
// that its plan was made for; 0: any number.
Result<RunCollectives*> CollectivesOf(const KernelContext& context, int ranks = 0);

// Copies within the device, in the order of its stream.
using CopyBytes = std::function<Status(void* to, const void* from, size_t bytes)>;

void AddCollectives(KernelRegistry& registry, const CopyBytes& copy);

}  // namespace caesura

#endif  // CAESURA_CORE_OPS_COLLECTIVES_COLLECTIVES_H_
