// SPDX-License-Identifier: Apache-2.0
// Ranks that `mpirun` or SLURM's `srun` has started, without LibTorch. Open MPI's library is opened
// at run time: nothing needs it to build or to start.
#ifndef CAESURA_CORE_DISTRIBUTED_MPI_COMMUNICATOR_H_
#define CAESURA_CORE_DISTRIBUTED_MPI_COMMUNICATOR_H_

#include <memory>

#include "core/distributed/communicator.h"

namespace caesura {

// The ranks of this process's launcher (env::LaunchedRanks). Once a process. Collectives run on a
// thread of their own. MPI has no way to end a collective that a lost rank never comes to: Abort,
// where one is in flight, says why on stderr and ends the whole job. Fails with kNotFound where
// there is no Open MPI, with kUnsupported without a launcher, or where MPI does not find its ranks.
Result<std::unique_ptr<Communicator>> MpiCommunicator();

}  // namespace caesura

#endif  // CAESURA_CORE_DISTRIBUTED_MPI_COMMUNICATOR_H_
