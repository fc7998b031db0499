// SPDX-License-Identifier: Apache-2.0
// A communicator as slow as a link: to see how a step overlaps on networks that are not at hand.
#ifndef CAESURA_CORE_DISTRIBUTED_SIMULATED_COMMUNICATOR_H_
#define CAESURA_CORE_DISTRIBUTED_SIMULATED_COMMUNICATOR_H_

#include <memory>

#include "core/distributed/communicator.h"

namespace caesura {

// The link of each rank to its neighbours.
struct Link {
  double latency_seconds = 0;
  double bytes_per_second = 0;
};

// The time of a collective on such links: the alpha-beta model of ring algorithms (a binomial
// tree's latency for kBroadcast; Thakur, Rabenseifner, Gropp: Optimization of Collective
// Communication Operations in MPICH, 2005), without contention. REQUIRES: bytes_per_second > 0.
double CollectiveSeconds(const Collective& collective, int ranks, const Link& link);

// Does what `inner` does, and ends each collective no earlier than the links would: one after the
// other, from its start on this rank.
std::unique_ptr<Communicator> SimulatedCommunicator(std::unique_ptr<Communicator> inner, Link link);

}  // namespace caesura

#endif  // CAESURA_CORE_DISTRIBUTED_SIMULATED_COMMUNICATOR_H_
