// SPDX-License-Identifier: Apache-2.0
#include "core/tensor/tensor.h"

#include <algorithm>
#include <cassert>

#include "core/base/status_macros.h"

namespace caesura {

Tensor::Tensor(DType dtype, Shape shape, std::shared_ptr<Buffer> buffer, size_t byte_offset)
    : dtype_(dtype), shape_(std::move(shape)), buffer_(std::move(buffer)) {
  assert(byte_offset + bytes() <= buffer_->size());
  data_ = static_cast<char*>(buffer_->data()) + byte_offset;
}

Result<Tensor> Tensor::Allocate(DType dtype, Shape shape, Allocator& allocator) {
  RETURN_IF_ERROR(CheckedShape(shape.dims(), dtype).status());
  if (dtype == DType::kString) {
    const size_t count = static_cast<size_t>(shape.elements());
    return Tensor(dtype, std::move(shape), AllocateStrings(count));
  }
  const size_t bytes = static_cast<size_t>(shape.elements()) * DTypeSize(dtype);
  ASSIGN_OR_RETURN(std::shared_ptr<Buffer> buffer, allocator.Allocate(bytes));
  return Tensor(dtype, std::move(shape), std::move(buffer));
}

Tensor Tensor::Borrow(DType dtype, Shape shape, void* data, Device device) {
  const size_t bytes = static_cast<size_t>(shape.elements()) * DTypeSize(dtype);
  return Tensor(dtype, std::move(shape), std::make_shared<Buffer>(data, bytes, device, nullptr));
}

Tensor Tensor::Zeros(DType dtype, Shape shape) {
  if (dtype == DType::kString) return Allocate(dtype, std::move(shape)).value();
  const size_t bytes = static_cast<size_t>(shape.elements()) * DTypeSize(dtype);
  return Tensor(dtype, std::move(shape), AllocateZeros(bytes).value());
}

Tensor Tensor::Reshaped(Shape shape) const {
  assert(shape.elements() == elements());
  Tensor out = *this;
  out.shape_ = std::move(shape);
  return out;
}

Result<Tensor> Tensor::Clone(Allocator& allocator) const {
  assert(device().is_host());
  ASSIGN_OR_RETURN(Tensor out, Allocate(dtype_, shape_, allocator));
  CopyElements(dtype_, data_, out.raw(), elements());
  return out;
}

std::string RuntimeValue::Describe() const {
  if (is_tensor()) return DTypeName(tensor_.dtype()) + tensor_.shape().ToString();
  if (is_map())
    return std::string("map(") + DTypeName(map_->keys.dtype()) + ", " +
           DTypeName(map_->values.dtype()) + ")";
  return is_sequence() ? "a sequence" : "nothing";
}

void CopyElements(DType dtype, const void* src, void* dst, int64_t count) {
  if (dtype == DType::kString) {
    std::copy_n(static_cast<const std::string*>(src), count, static_cast<std::string*>(dst));
  } else if (count > 0) {
    std::memcpy(dst, src, static_cast<size_t>(count) * DTypeSize(dtype));
  }
}

}  // namespace caesura
