// SPDX-License-Identifier: Apache-2.0
// Finds the ranks that are on one machine.
#ifndef CAESURA_CORE_DISTRIBUTED_MACHINE_H_
#define CAESURA_CORE_DISTRIBUTED_MACHINE_H_

#include <cstdint>

#include "core/distributed/communicator.h"

namespace caesura {

// A number of this machine: all its processes get it, containers included, until it starts anew;
// other machines have other ones.
uint64_t ThisMachine();

// This rank's number among those on its machine: 0, 1, ... All ranks call it together.
Result<int> RankOnMachine(Communicator& ranks);

}  // namespace caesura

#endif  // CAESURA_CORE_DISTRIBUTED_MACHINE_H_
