// SPDX-License-Identifier: Apache-2.0
// Ranks as threads of one process.
#ifndef CAESURA_CORE_DISTRIBUTED_LOCAL_COMMUNICATOR_H_
#define CAESURA_CORE_DISTRIBUTED_LOCAL_COMMUNICATOR_H_

#include <memory>
#include <vector>

#include "core/distributed/communicator.h"

namespace caesura {

// The communicators of `size` ranks, one for each thread. Collectives run on a thread of their own;
// sums are made in the order of ranks, in float64 or the integer's own type: all ranks get the same
// bits in every run. REQUIRES: size >= 1.
std::vector<std::unique_ptr<Communicator>> LocalCommunicators(int size);

}  // namespace caesura

#endif  // CAESURA_CORE_DISTRIBUTED_LOCAL_COMMUNICATOR_H_
