// SPDX-License-Identifier: Apache-2.0
// at::Tensor to and from Tensor, by reference: both sides share the bytes, and the last one to go
// frees them.
//
// Thread safety: any thread.
#ifndef CAESURA_TORCH_BRIDGE_TORCH_TENSOR_H_
#define CAESURA_TORCH_BRIDGE_TORCH_TENSOR_H_

#include <ATen/core/Tensor.h>

#include "core/tensor/tensor.h"

namespace caesura::torch {

// kUndefined, or nothing, where the other side has no such type.
DType DTypeOf(c10::ScalarType type);
std::optional<c10::ScalarType> ScalarTypeOf(DType dtype);

// nullopt where the other side has no such device. {kOther, i} is device i of the one kind that a
// process may add to PyTorch's own (PrivateUse1), where it has.
std::optional<Device> DeviceOf(c10::Device device);
std::optional<c10::Device> TorchDeviceOf(Device device);

// A view that keeps `tensor` alive. What is not dense, or a lazy conjugate or negative, is copied
// first; gradients do not flow through it. Fails with kUnsupported for undefined, sparse and meta
// tensors, and types and devices that have no counterpart here.
Result<Tensor> FromTorch(const at::Tensor& tensor);
// A view that keeps the tensor's buffer alive. Fails with kUnsupported for strings, and types and
// devices that PyTorch does not have.
Result<at::Tensor> ToTorch(const Tensor& tensor);
// A dense tensor of bytes that the caller keeps alive. An operator that makes it larger gives it
// bytes of its own.
at::Tensor BorrowBytes(void* data, c10::ScalarType type, const Shape& shape,
                       c10::Device device = c10::kCPU);

}  // namespace caesura::torch

#endif  // CAESURA_TORCH_BRIDGE_TORCH_TENSOR_H_
