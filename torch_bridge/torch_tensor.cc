// SPDX-License-Identifier: Apache-2.0
#include "torch_bridge/torch_tensor.h"

#include <c10/core/Allocator.h>
#include <c10/core/TensorImpl.h>
#include <c10/core/TensorOptions.h>
#include <c10/core/impl/DeviceGuardImplInterface.h>

#include "core/base/status_macros.h"

namespace caesura::torch {
namespace {

struct TypeRow {
  DType dtype;
  c10::ScalarType type;
};
constexpr TypeRow kTypes[] = {
    {DType::kFloat32, c10::ScalarType::Float},
    {DType::kFloat64, c10::ScalarType::Double},
    {DType::kFloat16, c10::ScalarType::Half},
    {DType::kBFloat16, c10::ScalarType::BFloat16},
    {DType::kInt64, c10::ScalarType::Long},
    {DType::kInt32, c10::ScalarType::Int},
    {DType::kInt16, c10::ScalarType::Short},
    {DType::kInt8, c10::ScalarType::Char},
    {DType::kUInt8, c10::ScalarType::Byte},
    {DType::kUInt16, c10::ScalarType::UInt16},
    {DType::kUInt32, c10::ScalarType::UInt32},
    {DType::kUInt64, c10::ScalarType::UInt64},
    {DType::kBool, c10::ScalarType::Bool},
    {DType::kComplex64, c10::ScalarType::ComplexFloat},
    {DType::kComplex128, c10::ScalarType::ComplexDouble},
    {DType::kFloat8E4M3FN, c10::ScalarType::Float8_e4m3fn},
    {DType::kFloat8E4M3FNUZ, c10::ScalarType::Float8_e4m3fnuz},
    {DType::kFloat8E5M2, c10::ScalarType::Float8_e5m2},
    {DType::kFloat8E5M2FNUZ, c10::ScalarType::Float8_e5m2fnuz},
    {DType::kFloat8E8M0, c10::ScalarType::Float8_e8m0fnu},
};

at::Tensor Wrap(c10::DataPtr data, size_t bytes, c10::ScalarType type, const Shape& shape) {
  const c10::Device device = data.device();
  c10::Storage storage(c10::Storage::use_byte_size_t(), bytes, std::move(data),
                       c10::GetAllocator(device.type()),
                       /*resizable=*/true);
  const c10::DispatchKey key = c10::computeDispatchKey(type, c10::kStrided, device);
  at::Tensor out = at::detail::make_tensor<c10::TensorImpl>(
      std::move(storage), c10::DispatchKeySet(key), c10::scalarTypeToTypeMeta(type));
  out.unsafeGetTensorImpl()->set_sizes_contiguous(shape.dims());
  return out;
}

}  // namespace

DType DTypeOf(c10::ScalarType type) {
  for (const TypeRow& row : kTypes) {
    if (row.type == type) return row.dtype;
  }
  return DType::kUndefined;
}

std::optional<c10::ScalarType> ScalarTypeOf(DType dtype) {
  for (const TypeRow& row : kTypes) {
    if (row.dtype == dtype) return row.type;
  }
  return std::nullopt;
}

std::optional<Device> DeviceOf(c10::Device device) {
  const int16_t index = device.has_index() ? device.index() : int16_t{0};
  switch (device.type()) {
    case c10::DeviceType::CPU: return Device{};
    case c10::DeviceType::CUDA: return Device{DeviceType::kCuda, index};
    case c10::DeviceType::PrivateUse1: return Device{DeviceType::kOther, index};
    default: return std::nullopt;
  }
}

std::optional<c10::Device> TorchDeviceOf(Device device) {
  if (device.is_host()) return c10::Device(c10::kCPU);
  const auto type =
      device.type == DeviceType::kCuda ? c10::DeviceType::CUDA : c10::DeviceType::PrivateUse1;
  if (!c10::impl::hasDeviceGuardImpl(type)) return std::nullopt;
  return c10::Device(type, static_cast<c10::DeviceIndex>(device.index));
}

Result<Tensor> FromTorch(const at::Tensor& tensor) try {
  if (!tensor.defined()) return Unsupported("an undefined torch tensor");
  const std::optional<Device> device = DeviceOf(tensor.device());
  if (tensor.layout() != c10::kStrided || !device) {
    return Unsupported("a torch tensor on " + tensor.device().str() +
                       " that is not dense, or nowhere that we know");
  }
  const DType dtype = DTypeOf(tensor.scalar_type());
  if (dtype == DType::kUndefined)
    return Unsupported(std::string("torch type ") + c10::toString(tensor.scalar_type()));
  c10::intrusive_ptr<c10::TensorImpl> impl = tensor.getIntrusivePtr();
  if (tensor._is_zerotensor()) {  // forward-mode derivatives make them: zeros that nobody has
                                  // written down
    impl = tensor.detach().clone(at::MemoryFormat::Contiguous).getIntrusivePtr();
  } else if (!tensor.is_contiguous() || tensor.is_neg() || tensor.is_conj()) {
    impl = tensor.detach().resolve_conj().resolve_neg().contiguous().getIntrusivePtr();
  }
  void* data = impl->mutable_data();
  static char
      nothing;  // an address for tensors of no elements: kernels take null for an absent input
  if (data == nullptr && impl->numel() > 0) return Unsupported("a torch tensor without memory");
  if (data == nullptr) data = &nothing;
  Shape shape(impl->sizes().vec());
  const size_t bytes = static_cast<size_t>(impl->numel()) * DTypeSize(dtype);
  // The count is held by hand: a deleter that holds a plain pointer needs no memory of its own.
  auto buffer = std::make_shared<Buffer>(
      data, bytes, *device, [held = impl.get()](void*) { c10::raw::intrusive_ptr::decref(held); });
  static_cast<void>(impl.release());
  return Tensor(dtype, std::move(shape), std::move(buffer));
} catch (const std::bad_alloc&) {
  return OutOfMemory("memory ran out while a torch tensor was taken in");
} catch (const std::exception& error) {
  return Unsupported(std::string("a torch tensor could not be taken in: ") + error.what());
}

Result<at::Tensor> ToTorch(const Tensor& tensor) try {
  const std::optional<c10::ScalarType> type = ScalarTypeOf(tensor.dtype());
  if (!type)
    return Unsupported(std::string("PyTorch has no type for ") + DTypeName(tensor.dtype()));
  const std::optional<c10::Device> device = TorchDeviceOf(tensor.device());
  if (!device)
    return Unsupported("a tensor on " + tensor.device().ToString() +
                       ", which PyTorch does not have here");
  auto* keep = new std::shared_ptr<Buffer>(tensor.buffer());
  c10::DataPtr data(
      tensor.raw(), keep, [](void* p) { delete static_cast<std::shared_ptr<Buffer>*>(p); },
      *device);
  return Wrap(std::move(data), tensor.bytes(), *type, tensor.shape());
} catch (const std::bad_alloc&) {
  return OutOfMemory("memory ran out while a tensor was handed to PyTorch");
}

at::Tensor BorrowBytes(void* data, c10::ScalarType type, const Shape& shape, c10::Device device) {
  const size_t bytes = static_cast<size_t>(shape.elements()) * c10::elementSize(type);
  return Wrap(c10::DataPtr(data, device), bytes, type, shape);
}

}  // namespace caesura::torch
