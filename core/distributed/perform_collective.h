// SPDX-License-Identifier: Apache-2.0
// The work of one collective where the memory of all ranks is in one process.
#ifndef CAESURA_CORE_DISTRIBUTED_PERFORM_COLLECTIVE_H_
#define CAESURA_CORE_DISTRIBUTED_PERFORM_COLLECTIVE_H_

#include <span>

#include "core/distributed/communicator.h"

namespace caesura {

// Reduces the ranks' elements [0, count), in the order of ranks: in float64 or the integer's own
// type. `out` may be one of the inputs. REQUIRES: a numeric dtype; one input or more.
void ReduceInOrder(DType dtype, ReduceOp op, std::span<const void* const> inputs, int64_t count,
                   void* out);

// Fills the outputs of one collective from its inputs, on this thread. `given`: the collective as
// each rank sees it, in the order of ranks; of kSend and kReceive the sender's and the receiver's.
// Sums are those of ReduceInOrder. Fails with
// kRankFailure, and has written nothing, where ranks do different things.
// REQUIRES: each passes CheckCollective; there is one or more.
Status PerformCollective(std::span<const Collective> given);

}  // namespace caesura

#endif  // CAESURA_CORE_DISTRIBUTED_PERFORM_COLLECTIVE_H_
