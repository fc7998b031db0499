// SPDX-License-Identifier: Apache-2.0
// Feeds of one-node graphs, and the same at addresses that are not aligned.
#ifndef CAESURA_TESTS_CORE_OPS_CUDA_KERNEL_FEEDS_H_
#define CAESURA_TESTS_CORE_OPS_CUDA_KERNEL_FEEDS_H_

#include <cstring>
#include <random>
#include <string>

#include "core/plan/device_constants.h"
#include "core/providers/cuda/cuda_provider.h"
#include "core/tensor/tensor.h"

namespace caesura::testing {

// Sums of these are rounded, so that their order shows.
inline Tensor Random(DType dtype, const Shape& shape, std::mt19937& random) {
  Tensor out = Tensor::Zeros(dtype, shape);
  DispatchFloat(dtype, [&](auto tag) {
    using T = typename decltype(tag)::type;
    for (int64_t i = 0; i < out.elements(); ++i)
      out.data<T>()[i] = static_cast<T>(static_cast<float>(random() % 20011) / 7919 - 1.2f);
  });
  return out;
}

// "2, 3"
inline std::string Dims(const Shape& shape) {
  std::string out;
  for (int64_t dim : shape) out += (out.empty() ? "" : ", ") + std::to_string(dim);
  return out;
}

// "float[2, 3] x"
inline std::string Declared(const std::string& name, const Tensor& tensor) {
  const std::string dtype = DTypeName(tensor.dtype());
  return (dtype == "float32"   ? "float"
          : dtype == "float64" ? "double"
                               : dtype) +
         "[" + Dims(tensor.shape()) + "] " + name;
}

// A copy on the device, one element after an aligned address.
inline Tensor Misaligned(const Tensor& tensor, const ExecutionProvider& provider) {
  const Tensor longer = Tensor::Zeros(tensor.dtype(), Shape{tensor.elements() + 1});
  const size_t element = DTypeSize(tensor.dtype());
  std::memcpy(longer.data<char>() + element, tensor.raw(), tensor.bytes());
  return Tensor(tensor.dtype(), tensor.shape(), CopyToDevice(longer, provider).value().buffer(),
                element);
}

}  // namespace caesura::testing

#endif  // CAESURA_TESTS_CORE_OPS_CUDA_KERNEL_FEEDS_H_
