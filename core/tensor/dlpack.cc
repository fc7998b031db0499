// SPDX-License-Identifier: Apache-2.0
#include "core/tensor/dlpack.h"

#include <dlpack/dlpack.h>

#include <algorithm>
#include <memory>
#include <new>
#include <utility>
#include <vector>

#include "core/base/status_macros.h"
#include "core/tensor/tensor.h"

namespace caesura {
namespace {

static_assert(DLPACK_MAJOR_VERSION == 1 && DLPACK_MINOR_VERSION >= 3, "dlpack/dlpack.h is too old");

constexpr int kMaxRank = 64;
// The address of tensors without elements, since kernels take a null pointer for an absent input.
alignas(kBufferAlignment) char kNoElements[kBufferAlignment];

struct TypeRow {
  DType dtype;
  uint8_t code, bits;
};
constexpr TypeRow kTypes[] = {
    {DType::kFloat32, kDLFloat, 32},
    {DType::kUInt8, kDLUInt, 8},
    {DType::kInt8, kDLInt, 8},
    {DType::kUInt16, kDLUInt, 16},
    {DType::kInt16, kDLInt, 16},
    {DType::kInt32, kDLInt, 32},
    {DType::kInt64, kDLInt, 64},
    {DType::kBool, kDLBool, 8},
    {DType::kFloat16, kDLFloat, 16},
    {DType::kFloat64, kDLFloat, 64},
    {DType::kUInt32, kDLUInt, 32},
    {DType::kUInt64, kDLUInt, 64},
    {DType::kComplex64, kDLComplex, 64},
    {DType::kComplex128, kDLComplex, 128},
    {DType::kBFloat16, kDLBfloat, 16},
    {DType::kFloat8E4M3FN, kDLFloat8_e4m3fn, 8},
    {DType::kFloat8E4M3FNUZ, kDLFloat8_e4m3fnuz, 8},
    {DType::kFloat8E5M2, kDLFloat8_e5m2, 8},
    {DType::kFloat8E5M2FNUZ, kDLFloat8_e5m2fnuz, 8},
    {DType::kUInt4, kDLUInt, 4},
    {DType::kInt4, kDLInt, 4},
    {DType::kFloat4E2M1, kDLFloat4_e2m1fn, 4},
    {DType::kFloat8E8M0, kDLFloat8_e8m0fnu, 8},
    {DType::kUInt2, kDLUInt, 2},
    {DType::kInt2, kDLInt, 2},
};

Result<DType> ImportType(DLDataType type, bool padded) {
  if (type.lanes == 1) {
    for (const TypeRow& row : kTypes) {
      if (row.code != type.code || row.bits != type.bits) continue;
      if (row.bits >= 8 || padded) return row.dtype;
      return Unsupported(std::string("DLPack tensor of packed ") + DTypeName(row.dtype) +
                         ": only padded ones are taken");
    }
  }
  return Unsupported("DLPack type of code " + std::to_string(type.code) + ", " +
                     std::to_string(type.bits) + " bits, " + std::to_string(type.lanes) +
                     " lanes has no counterpart");
}

Result<Device> ImportDevice(DLDevice device) {
  switch (device.device_type) {
    case kDLCPU:
    case kDLCUDAHost:
    case kDLROCMHost: return Device{};
    case kDLCUDA:
    case kDLCUDAManaged:
      if (device.device_id < 0 || device.device_id > INT16_MAX) break;
      return Device{DeviceType::kCuda, static_cast<int16_t>(device.device_id)};
    default: break;
  }
  return Unsupported("DLPack device of type " + std::to_string(device.device_type) + ", index " +
                     std::to_string(device.device_id) + " is not known here");
}

Result<Shape> ImportShape(const DLTensor& tensor, DType dtype) {
  if (tensor.ndim < 0 || tensor.ndim > kMaxRank) {
    return InvalidArgument("DLPack tensor of rank " + std::to_string(tensor.ndim));
  }
  if (tensor.ndim > 0 && tensor.shape == nullptr)
    return InvalidArgument("DLPack tensor without a shape");
  return CheckedShape(std::vector<int64_t>(tensor.shape, tensor.shape + tensor.ndim), dtype);
}

bool IsDense(const DLTensor& tensor) {
  if (tensor.strides == nullptr) return true;
  int64_t expected = 1;
  for (int d = tensor.ndim - 1; d >= 0; --d) {
    if (tensor.shape[d] != 1 && tensor.strides[d] != expected) return false;
    expected *= tensor.shape[d];
  }
  return true;
}

// True if the farthest elements on both sides have offsets that can be counted in bytes.
bool StridesFit(const DLTensor& tensor, int64_t element_bytes) {
  int64_t low = 0, high = 0;
  for (int d = 0; d < tensor.ndim; ++d) {
    int64_t reach;
    if (__builtin_mul_overflow(tensor.strides[d], tensor.shape[d] - 1, &reach)) return false;
    int64_t& end = reach < 0 ? low : high;
    if (__builtin_add_overflow(end, reach, &end)) return false;
  }
  int64_t bytes;
  return !__builtin_mul_overflow(low, element_bytes, &bytes) &&
         !__builtin_mul_overflow(high, element_bytes, &bytes);
}

Result<Tensor> CopyOf(const DLTensor& tensor, const void* data, DType dtype, Shape shape) {
  Layout layout;
  for (int d = 0; tensor.strides != nullptr && d < tensor.ndim; ++d)
    layout.strides.push_back(tensor.shape[d] == 1 ? 0 : tensor.strides[d]);  // one element: no step
  ASSIGN_OR_RETURN(Tensor copy, Tensor::Allocate(dtype, std::move(shape)));
  CopyDense(data, copy.shape(), layout, DTypeSize(dtype), copy.raw());
  return copy;
}

template <typename Managed>
void Delete(Managed* managed) {
  if (managed->deleter != nullptr) managed->deleter(managed);
}

template <typename Managed>
Result<Tensor> Import(Managed* managed, bool padded, DlpackImport* facts) try {
  // Deletes on every way out but that on which the buffer has taken over.
  std::unique_ptr<Managed, void (*)(Managed*)> owner(managed, &Delete<Managed>);
  const DLTensor& tensor = managed->dl_tensor;
  ASSIGN_OR_RETURN(const Device device, ImportDevice(tensor.device));
  ASSIGN_OR_RETURN(const DType dtype, ImportType(tensor.dtype, padded));
  ASSIGN_OR_RETURN(Shape shape, ImportShape(tensor, dtype));
  const size_t bytes = static_cast<size_t>(shape.elements()) * DTypeSize(dtype);
  if (bytes == 0)
    return Tensor(dtype, std::move(shape),
                  std::make_shared<Buffer>(kNoElements, 0, device, nullptr));
  if (tensor.data == nullptr)
    return InvalidArgument("DLPack tensor of shape " + shape.ToString() + " without data");
  if (tensor.byte_offset > UINTPTR_MAX - reinterpret_cast<uintptr_t>(tensor.data) - bytes) {
    return InvalidArgument("DLPack tensor at byte offset " + std::to_string(tensor.byte_offset));
  }
  char* data = static_cast<char*>(tensor.data) + tensor.byte_offset;
  const bool dense = IsDense(tensor);
  if (!dense && !StridesFit(tensor, static_cast<int64_t>(DTypeSize(dtype)))) {
    return InvalidArgument("DLPack tensor of shape " + shape.ToString() +
                           " with strides beyond all memory");
  }
  const size_t alignment =
      std::min<size_t>(DTypeSize(dtype), 8);  // complex128 is a pair of doubles
  if (!dense || reinterpret_cast<uintptr_t>(data) % alignment != 0) {
    if (!device.is_host())
      return Unsupported("DLPack tensor on " + device.ToString() + " that is not dense");
    if (facts != nullptr) *facts = {.read_only = false, .copied = true};
    return CopyOf(tensor, data, dtype, std::move(shape));
  }
  Buffer::Deleter
      deleter;  // none where there is nothing to call: `managed` may then go before the tensor
  if (managed->deleter != nullptr) deleter = [managed](void*) { managed->deleter(managed); };
  auto buffer = std::make_shared<Buffer>(data, bytes, device, std::move(deleter));
  static_cast<void>(owner.release());
  return Tensor(dtype, std::move(shape), std::move(buffer));
} catch (const std::bad_alloc&) {
  return OutOfMemory("memory ran out while a tensor was taken in");
}

// A managed tensor with what it points at.
template <typename Managed>
struct Exported {
  Managed managed = {};
  std::shared_ptr<Buffer> buffer;
  std::vector<int64_t> numbers;  // shape, then strides
};

template <typename Managed>
Result<Managed*> Export(const Tensor& tensor) try {
  DLDataType type = {};
  for (const TypeRow& row : kTypes) {
    if (row.dtype == tensor.dtype()) type = {row.code, row.bits, 1};
  }
  if (type.lanes == 0)
    return Unsupported(std::string("DLPack has no type for ") + DTypeName(tensor.dtype()));
  ASSIGN_OR_RETURN(const DlpackDevice device, DlpackDeviceOf(tensor.device()));
  auto out = std::make_unique<Exported<Managed>>();
  const int rank = tensor.shape().rank();
  out->buffer = tensor.buffer();
  out->numbers.resize(2 * static_cast<size_t>(rank));
  int64_t* const dims = out->numbers.data();
  int64_t stride = 1;
  for (int d = rank - 1; d >= 0; --d) {
    dims[d] = tensor.shape()[d];
    dims[rank + d] = stride;
    stride *= std::max<int64_t>(dims[d], 1);
  }
  out->managed.dl_tensor = {tensor.bytes() == 0 ? nullptr : tensor.raw(),
                            {static_cast<DLDeviceType>(device.type), device.index},
                            rank,
                            type,
                            dims,
                            dims + rank,
                            0};
  out->managed.manager_ctx = out.get();
  out->managed.deleter = [](Managed* self) {
    delete static_cast<Exported<Managed>*>(self->manager_ctx);
  };
  return &out.release()->managed;
} catch (const std::bad_alloc&) {
  return OutOfMemory("memory ran out while a tensor was handed out");
}

}  // namespace

Result<Tensor> ImportDlpack(DLManagedTensorVersioned* managed, DlpackImport* facts) {
  if (managed->version.major != DLPACK_MAJOR_VERSION) {
    const std::string version =
        std::to_string(managed->version.major) + "." + std::to_string(managed->version.minor);
    Delete(managed);  // all else may lie elsewhere in that version
    return Unsupported("DLPack tensor of version " + version + ", expected 1.x");
  }
  if (facts != nullptr)
    *facts = {.read_only = (managed->flags & DLPACK_FLAG_BITMASK_READ_ONLY) != 0, .copied = false};
  return Import(managed, (managed->flags & DLPACK_FLAG_BITMASK_IS_SUBBYTE_TYPE_PADDED) != 0, facts);
}

Result<Tensor> ImportDlpack(DLManagedTensor* managed, DlpackImport* facts) {
  if (facts != nullptr) *facts = {};
  return Import(managed, /*padded=*/false, facts);
}

Result<DLManagedTensorVersioned*> ExportDlpack(const Tensor& tensor, uint64_t flags) {
  ASSIGN_OR_RETURN(DLManagedTensorVersioned * managed, Export<DLManagedTensorVersioned>(tensor));
  managed->version = {DLPACK_MAJOR_VERSION, DLPACK_MINOR_VERSION};
  managed->flags = flags;
  if (DTypeFileBits(tensor.dtype()) < 8)
    managed->flags |= DLPACK_FLAG_BITMASK_IS_SUBBYTE_TYPE_PADDED;
  return managed;
}

Result<DLManagedTensor*> ExportLegacyDlpack(const Tensor& tensor) {
  if (tensor.defined() && DTypeFileBits(tensor.dtype()) < 8) {
    return Unsupported(std::string("DLPack before 1.0 cannot say that ") +
                       DTypeName(tensor.dtype()) + " is padded");
  }
  return Export<DLManagedTensor>(tensor);
}

Result<DlpackDevice> DlpackDeviceOf(Device device) {
  switch (device.type) {
    case DeviceType::kCpu: return DlpackDevice{kDLCPU, 0};
    case DeviceType::kCuda: return DlpackDevice{kDLCUDA, device.index};
    case DeviceType::kOther: break;
  }
  return Unsupported("DLPack has no code for " + device.ToString());
}

}  // namespace caesura
