// SPDX-License-Identifier: Apache-2.0
// A GPU that PyTorch and a provider share: its memory, and the order of their work. The host never
// waits.
//
// Thread safety: any thread.
#ifndef CAESURA_TORCH_BRIDGE_TORCH_STREAM_H_
#define CAESURA_TORCH_BRIDGE_TORCH_STREAM_H_

#include "core/cuda/cuda_options.h"
#include "core/providers/execution_provider.h"
#include "core/tensor/tensor.h"

namespace caesura::torch {

// The stream of the device that PyTorch works on, on this thread (a cudaStream_t; 1: the legacy
// default stream). Fails where PyTorch has no such device.
Result<void*> CurrentTorchStream(Device device);

// Memory of PyTorch's own allocator, in the order of the device's default stream. The last copy of
// what it returns gives it back.
Result<std::shared_ptr<void>> AllocateByTorch(Device device, size_t bytes);

// A CUDA provider that works in PyTorch's memory and on the default stream, which is PyTorch's
// where nobody chooses another one. Of `options`, stream and allocate are set here. Fails as
// MakeCudaProvider.
Result<std::shared_ptr<const ExecutionProvider>> MakeCudaProviderOnTorch(CudaOptions options = {});

// The provider's work from here on begins when PyTorch's earlier work is done: that on the stream
// that is current on this thread. Nothing happens on the host, or where both have one stream. Fails
// with kProviderFailure.
Status WaitForTorch(const ExecutionProvider& provider);
// PyTorch's later work, on the stream that is current on this thread, waits for the provider's work
// until here. Nothing happens on the host, or where both have one stream. Fails with
// kProviderFailure.
Status TorchWaits(const ExecutionProvider& provider);

// The tensor, which the provider has made, for PyTorch: its memory is used again only after
// PyTorch's work on it, when PyTorch has let it go.
Tensor LentToTorch(Tensor tensor, std::shared_ptr<const ExecutionProvider> provider);

}  // namespace caesura::torch

#endif  // CAESURA_TORCH_BRIDGE_TORCH_STREAM_H_
