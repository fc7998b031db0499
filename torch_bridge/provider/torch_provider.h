// SPDX-License-Identifier: Apache-2.0
// The torch provider: ONNX ops through PyTorch's operators, in memory of PyTorch's allocator and on
// its current stream. On the CPU a second opinion on our kernels, and what to fall back to;
// elsewhere what runs before kernels of our own exist.
#ifndef CAESURA_TORCH_BRIDGE_PROVIDER_TORCH_PROVIDER_H_
#define CAESURA_TORCH_BRIDGE_PROVIDER_TORCH_PROVIDER_H_

#include <functional>
#include <memory>
#include <string>

#include "core/providers/execution_provider.h"

namespace caesura::torch {

inline constexpr char kTorchProviderName[] = "TorchExecutionProvider";

// Its kernels are those of torch_ops.h and aten_op.h, then what `more` adds: kernels for host
// memory that are asked where PyTorch has no equivalent of an op, its types or its attributes
// (RegisterCpuKernels).
std::shared_ptr<const ExecutionProvider> MakeTorchProvider(
    const std::function<void(KernelRegistry&)>& more = {});

// The torch provider of a device as PyTorch names it ("cuda", "cuda:1"); what has no equivalent
// goes to the next provider. Fails with kUnsupported where PyTorch has no such device in this
// process.
//
// Runs of a session use its memory in the order of the streams that are current in their threads:
// one stream for all, or a wait between those of different ones.
Result<std::shared_ptr<const ExecutionProvider>> MakeTorchDeviceProvider(const std::string& device);

}  // namespace caesura::torch

#endif  // CAESURA_TORCH_BRIDGE_PROVIDER_TORCH_PROVIDER_H_
