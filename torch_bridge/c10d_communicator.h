// SPDX-License-Identifier: Apache-2.0
// Ranks that talk through a process group of PyTorch's (Gloo, NCCL, MPI, or one of the user's).
#ifndef CAESURA_TORCH_BRIDGE_C10D_COMMUNICATOR_H_
#define CAESURA_TORCH_BRIDGE_C10D_COMMUNICATOR_H_

#include <memory>
#include <string>

#include "core/distributed/communicator.h"

namespace c10d {
class ProcessGroup;
}  // namespace c10d

namespace caesura::torch {

// The process group that this process knows by this name: `group.group_name` in Python;
// c10d::register_process_group in C++. The group's other users keep their own order of collectives
// apart from ours, as with any two users of one group. The group's own time-out ends each of our
// collectives. Fails with kNotFound.
Result<std::unique_ptr<Communicator>> C10dCommunicator(const std::string& group_name);

}  // namespace caesura::torch

#endif  // CAESURA_TORCH_BRIDGE_C10D_COMMUNICATOR_H_
