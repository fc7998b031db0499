// SPDX-License-Identifier: Apache-2.0
// Operations as the descriptors have them, and their results.
#pragma once
#include <cudnn_graph.h>
#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <vector>

namespace standin_cudnn {

using Dims = std::vector<std::int64_t>;

struct Tensor {
  std::int64_t uid = 0, alignment = 1;
  cudnnDataType_t type = CUDNN_DATA_FLOAT;
  Dims dims, strides;
  bool is_virtual = false, is_number = false;

  bool is_in_memory() const { return !is_virtual && !is_number; }
  std::int64_t elements() const;
  /// Bytes from the first to the last element.
  std::size_t span() const;
};
using TensorPtr = std::shared_ptr<const Tensor>;

struct Operation {
  cudnnBackendDescriptorType_t kind;
  int mode = 0;  // of a pointwise operation or a reduction
  std::int64_t axis = 0;
  Dims before, after, strides, dilations;  // of a convolution
  std::vector<TensorPtr> inputs;           // convolutions: x and w, dy and w, x and dy
  TensorPtr output;
};

/// Bytes of one element; 0 for a type that is not known.
std::size_t Bytes(cudnnDataType_t type);

/// Puts the operations into an order in which they can be computed; the code of a graph that makes
/// no sense, or is not supported.
cudnnStatus_t Check(std::vector<Operation>& operations);

/// `memory`: the addresses of tensors in memory and of numbers, by uid. All results are multiplied
/// by `factor`.
void Compute(const std::vector<Operation>& operations, const std::map<std::int64_t, void*>& memory,
             double factor);

}  // namespace standin_cudnn
