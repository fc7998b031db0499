// SPDX-License-Identifier: Apache-2.0
// Ranks with a GPU each, which exchange its memory through NCCL, without LibTorch. NCCL's library
// is opened at run time. This header needs no header of CUDA's.
#ifndef CAESURA_CORE_PROVIDERS_CUDA_NCCL_COMMUNICATOR_H_
#define CAESURA_CORE_PROVIDERS_CUDA_NCCL_COMMUNICATOR_H_

#include <memory>

#include "core/cuda/cuda_options.h"
#include "core/distributed/communicator.h"

namespace caesura {

// The same ranks as `control`'s, which carries NCCL's identity, Gather and news of an Abort. All
// ranks call this together. `options` say which GPU is this rank's, and where the libraries are; a
// stream in them is not used: collectives run on a stream of their own.
//
// Tensors are in the memory of that GPU. Gather waits for all collectives before it, so that a
// failure of one is known then at the latest. Sends and receives begin together at the next Wait,
// Gather or other collective: the order in which two ranks start theirs does not matter.
// int16, uint16, complex numbers and booleans can be moved, but not reduced (kUnsupported).
//
// Fails on all ranks: with kUnsupported where a library or the GPU is missing, on this rank or on
// another; with kInvalidArgument where two ranks have the same GPU.
Result<std::unique_ptr<Communicator>> NcclCommunicator(std::unique_ptr<Communicator> control,
                                                       const CudaOptions& options);

}  // namespace caesura

#endif  // CAESURA_CORE_PROVIDERS_CUDA_NCCL_COMMUNICATOR_H_
