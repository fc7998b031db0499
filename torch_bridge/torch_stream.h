// SPDX-License-Identifier: Apache-2.0
// The order between PyTorch's work on a GPU and a provider's. The host never waits.
//
// Thread safety: any thread.
#ifndef CAESURA_TORCH_BRIDGE_TORCH_STREAM_H_
#define CAESURA_TORCH_BRIDGE_TORCH_STREAM_H_

#include "core/providers/execution_provider.h"
#include "core/tensor/tensor.h"

namespace caesura::torch {

// The stream of the device that PyTorch works on, on this thread (a cudaStream_t; 1: the legacy
// default stream). Fails where PyTorch has no such device.
Result<void*> CurrentTorchStream(Device device);

// The provider's work from here on begins when PyTorch's earlier work is done: that on the stream
// that is current on this thread. Nothing happens on the host, or where both have one stream. Fails
// with kProviderFailure.
Status WaitForTorch(const ExecutionProvider& provider);
// The same the other way round: PyTorch's work waits for the provider's.
Status TorchWaits(const ExecutionProvider& provider);

// The tensor, which the provider has made, for PyTorch: its memory is used again only after PyTorch's
// work on it, when PyTorch has let it go.
Tensor LentToTorch(Tensor tensor, std::shared_ptr<const ExecutionProvider> provider);

}  // namespace caesura::torch

#endif  // CAESURA_TORCH_BRIDGE_TORCH_STREAM_H_
