// SPDX-License-Identifier: Apache-2.0
// ONNX ops as calls of PyTorch: a function an op that settles attributes once and gives what a run
// calls. Types and shapes of the outputs come from calling that on tensors without bytes.
#ifndef CAESURA_TORCH_BRIDGE_PROVIDER_TORCH_OPS_H_
#define CAESURA_TORCH_BRIDGE_PROVIDER_TORCH_OPS_H_

#include <ATen/core/Tensor.h>

#include <climits>
#include <functional>
#include <string>
#include <vector>

#include "core/kernels/kernel_registry.h"

namespace caesura::torch {

using Tensors = std::vector<at::Tensor>;  // undefined where absent
using TorchRun = std::function<Tensors(const Tensors&)>;

// The types that PyTorch's CPU kernels take everywhere.
inline constexpr DTypeSet kTorchNumbers = kFloatTypes | kSignedTypes | DTypeSet{DType::kUInt8};
inline constexpr DTypeSet kTorchTypes = kTorchNumbers | DTypeSet{DType::kBool};

struct TorchOp {
  std::string op_type;
  // Null: PyTorch has no equivalent of these attributes or shapes; the next kernel is asked.
  std::function<TorchRun(const KernelInfo&)> make;
  DTypeSet types = kFloatTypes;
  int since = 1;  // what since_version the semantics are of, on to the newest
  std::vector<int> host_inputs = {};
  int typed_input = 0;  // that `types` are of
};

std::vector<TorchOp> ElementwiseTorchOps();  // torch_ops_elementwise.cc
std::vector<TorchOp> MovementTorchOps();     // torch_ops_movement.cc
std::vector<TorchOp> NnTorchOps();  // torch_ops_nn.cc: products, reductions, conv, pool, norms

}  // namespace caesura::torch

#endif  // CAESURA_TORCH_BRIDGE_PROVIDER_TORCH_OPS_H_
