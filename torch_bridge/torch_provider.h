// SPDX-License-Identifier: Apache-2.0
// The torch provider: ONNX ops through PyTorch's operators, in memory of PyTorch's allocator. On the CPU so far: a
// second opinion on our kernels, and what to fall back to.
#ifndef CAESURA_TORCH_BRIDGE_TORCH_PROVIDER_H_
#define CAESURA_TORCH_BRIDGE_TORCH_PROVIDER_H_

#include <functional>
#include <memory>

#include "core/providers/execution_provider.h"

namespace caesura::torch {

inline constexpr char kTorchProviderName[] = "TorchExecutionProvider";

// Its kernels are those of torch_ops.h and aten_op.h, then what `more` adds: kernels for host memory that are asked
// where PyTorch has no equivalent of an op, its types or its attributes (RegisterCpuKernels, RegisterTrainingKernels).
std::shared_ptr<const ExecutionProvider> MakeTorchProvider(const std::function<void(KernelRegistry&)>& more = {});

}  // namespace caesura::torch

#endif  // CAESURA_TORCH_BRIDGE_TORCH_PROVIDER_H_
