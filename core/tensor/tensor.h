// SPDX-License-Identifier: Apache-2.0
// A contiguous, row-major array on a device; and RuntimeValue, all that can flow along an edge of a
// graph.
#ifndef CAESURA_CORE_TENSOR_TENSOR_H_
#define CAESURA_CORE_TENSOR_TENSOR_H_

#include <cassert>
#include <cstring>
#include <initializer_list>
#include <memory>
#include <string>
#include <vector>

#include "core/base/status.h"
#include "core/tensor/buffer.h"
#include "core/tensor/dtype.h"
#include "core/tensor/shape.h"

namespace caesura {

// Copies share the bytes. An empty (default) tensor has dtype kUndefined.
// Thread safety: as a shared_ptr; the bytes are the users' business.
class Tensor {
 public:
  Tensor() = default;
  // REQUIRES: buffer holds at least `shape.elements() * DTypeSize(dtype)` bytes after
  // `byte_offset`.
  Tensor(DType dtype, Shape shape, std::shared_ptr<Buffer> buffer, size_t byte_offset = 0);

  // A fresh tensor; uninitialised, but strings are empty ones.
  static Result<Tensor> Allocate(DType dtype, Shape shape, Allocator& allocator = HostAllocator());
  // A view of memory that the caller keeps alive and unchanged in size.
  static Tensor Borrow(DType dtype, Shape shape, void* data, Device device = {});

  // Small host tensors for tests and constants; never fail but by running out of memory (which
  // throws).
  template <typename T>
  static Tensor Of(Shape shape, const std::vector<T>& values);
  template <typename T>
  static Tensor Scalar(T value) {
    return Of<T>(Shape{}, {value});
  }
  static Tensor Zeros(DType dtype, Shape shape);

  bool defined() const { return dtype_ != DType::kUndefined; }
  DType dtype() const { return dtype_; }
  const Shape& shape() const { return shape_; }
  int64_t elements() const { return shape_.elements(); }
  size_t bytes() const { return static_cast<size_t>(elements()) * DTypeSize(dtype_); }
  Device device() const { return buffer_ ? buffer_->device() : Device{}; }
  const std::shared_ptr<Buffer>& buffer() const { return buffer_; }

  void* raw() const { return data_; }
  // REQUIRES: T is the element type, another type of its size, or one of single bytes.
  template <typename T>
  T* data() const {
    assert(data_ == nullptr || sizeof(T) == 1 || sizeof(T) == DTypeSize(dtype_));
    return static_cast<T*>(data_);
  }
  // The elements as a vector, converted to T. REQUIRES: host memory, a numeric or bool dtype (not
  // complex).
  template <typename T>
  std::vector<T> ToVector() const;

  // The same bytes under another shape. REQUIRES: equal element count.
  Tensor Reshaped(Shape shape) const;
  // A deep copy on the host. REQUIRES: host memory.
  Result<Tensor> Clone(Allocator& allocator = HostAllocator()) const;

 private:
  DType dtype_ = DType::kUndefined;
  Shape shape_;
  std::shared_ptr<Buffer> buffer_;
  void* data_ = nullptr;
};

// The value of an edge at run time: nothing (an empty optional), a tensor, a sequence, or a map. An
// ONNX optional that holds something is that something.
class RuntimeValue {
 public:
  // A map in two tensors of one shape [n]: values[i] belongs to keys[i], and no key is there twice.
  // Keys are strings or integers.
  struct MapEntries {
    Tensor keys, values;
  };

  RuntimeValue() = default;
  RuntimeValue(Tensor tensor) : tensor_(std::move(tensor)) {}
  static RuntimeValue Sequence(std::vector<RuntimeValue> elements) {
    RuntimeValue out;
    out.sequence_ = std::make_shared<const std::vector<RuntimeValue>>(std::move(elements));
    return out;
  }
  // Sessions check that the tensors are as MapEntries has them. Nobody writes to their bytes any
  // more.
  static RuntimeValue Map(Tensor keys, Tensor values) {
    RuntimeValue out;
    out.map_ = std::make_shared<const MapEntries>(MapEntries{std::move(keys), std::move(values)});
    return out;
  }

  bool has_value() const { return is_tensor() || is_sequence() || is_map(); }
  bool is_tensor() const { return tensor_.defined(); }
  bool is_sequence() const { return sequence_ != nullptr; }
  bool is_map() const { return map_ != nullptr; }
  // Undefined unless is_tensor().
  const Tensor& tensor() const { return tensor_; }
  // REQUIRES: is_sequence()
  const std::vector<RuntimeValue>& sequence() const { return assert(is_sequence()), *sequence_; }
  // REQUIRES: is_map()
  const MapEntries& map() const { return assert(is_map()), *map_; }
  // "float32[2, 3]", "a sequence", "map(int64, float32)" or "nothing": for error messages.
  std::string Describe() const;

 private:
  Tensor tensor_;
  std::shared_ptr<const std::vector<RuntimeValue>> sequence_;
  std::shared_ptr<const MapEntries> map_;
};

// Copies `count` elements; strings are assigned, all else is moved as bytes.
void CopyElements(DType dtype, const void* src, void* dst, int64_t count);

template <typename T>
Tensor Tensor::Of(Shape shape, const std::vector<T>& values) {
  Tensor out = Allocate(kDTypeOf<T>, std::move(shape)).value();
  for (size_t i = 0; i < values.size(); ++i) out.data<T>()[i] = values[i];
  return out;
}

template <typename T>
std::vector<T> Tensor::ToVector() const {
  assert(device().is_host());
  std::vector<T> out(static_cast<size_t>(elements()));
  auto read = [&](auto tag) {
    using E = typename decltype(tag)::type;
    for (size_t i = 0; i < out.size(); ++i) out[i] = static_cast<T>(data<E>()[i]);
  };
  [[maybe_unused]] const bool known =
      DispatchNumeric(dtype_, read) || DispatchDType<bool>(dtype_, read);
  assert(known);
  return out;
}

}  // namespace caesura

#endif  // CAESURA_CORE_TENSOR_TENSOR_H_
