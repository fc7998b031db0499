// SPDX-License-Identifier: Apache-2.0
// Tensors that another library hands over by DLPack, with fields as the input says. The bytes that
// honest fields reach are there; fields that reach elsewhere, which nobody can check, are left out.
#include "core/tensor/dlpack.h"

#include <dlpack/dlpack.h>

#include <array>
#include <vector>

#include "tests/fuzz/target.h"

namespace caesura::fuzz {
namespace {

constexpr size_t kBytes = 4096;
constexpr int kDims = 70;  // beyond what an import takes

struct Fields {
  DLTensor tensor = {};
  std::array<int64_t, kDims> shape = {}, strides = {};
  uint64_t flags = 0;
  uint32_t major = 1;
  bool has_deleter = true;
  alignas(64) std::array<char, kBytes> bytes = {};
  int deleted = 0;
};

void Decode(Bytes& input, Fields* fields) {
  DLTensor& tensor = fields->tensor;
  tensor.ndim = static_cast<int32_t>(input.Byte() % 16 == 0 ? input.Raw() : input.Byte() % 6);
  static constexpr uint8_t kBits[] = {1, 2, 4, 8, 16, 32, 64, 128};
  const uint8_t type = input.Byte();
  tensor.dtype = {static_cast<uint8_t>(input.Byte() % 19), type < 240 ? kBits[type % 8] : type,
                  static_cast<uint16_t>(input.Byte() < 240 ? 1 : input.Raw())};
  tensor.device = {input.Byte() < 200 ? kDLCPU : static_cast<DLDeviceType>(input.Byte()),
                   static_cast<int32_t>(input.Int())};
  const uint8_t what = input.Byte();
  tensor.data = (what & 3) == 0 ? nullptr : fields->bytes.data();
  tensor.shape = (what & 12) == 0 ? nullptr : fields->shape.data();
  tensor.strides = (what & 16) == 0 ? nullptr : fields->strides.data();
  fields->has_deleter = (what & 32) == 0;
  fields->major = (what & 192) == 192 ? static_cast<uint32_t>(input.Raw()) : DLPACK_MAJOR_VERSION;
  fields->flags = input.Byte() % 8;
  tensor.byte_offset = static_cast<uint64_t>(input.Byte() < 128 ? 0 : input.Int());
  const int known = std::clamp(tensor.ndim, 0, kDims);
  for (int d = 0; d < known; ++d) fields->shape[d] = input.Int();
  for (int d = 0; d < known; ++d) fields->strides[d] = input.Int();
}

using Wide = __int128;

// True if an import that believes the fields stays inside of the bytes that are there, or can see
// that no tensor has them.
bool IsHonest(const Fields& fields) {
  const DLTensor& tensor = fields.tensor;
  if (tensor.ndim < 0 || tensor.ndim > 64 || tensor.data == nullptr) return true;
  if (tensor.ndim > 0 && tensor.shape == nullptr) return true;
  const Wide element = (tensor.dtype.bits + 7) / 8, limit = static_cast<Wide>(1) << 100;
  Wide low = 0, high = 0, count = 1;
  bool is_empty = false;
  for (int d = 0; d < tensor.ndim; ++d) {
    if (tensor.shape[d] < 0) return true;
    is_empty |= tensor.shape[d] == 0;
    if (count < limit >> 64) count *= std::max<int64_t>(tensor.shape[d], 1);
  }
  if (is_empty) return true;
  for (int d = 0; d < tensor.ndim && tensor.strides != nullptr; ++d) {
    const Wide reach = static_cast<Wide>(tensor.strides[d]) * (tensor.shape[d] - 1);
    (reach < 0 ? low : high) += std::clamp(reach, -limit, limit);
  }
  if (tensor.strides == nullptr) high = count - 1;
  const Wide addressable = static_cast<Wide>(1) << 63,
             offset = static_cast<Wide>(tensor.byte_offset);
  if (count * element >= addressable || high * element >= addressable ||
      low * element < -addressable)
    return true;
  return offset + count * element >= 2 * addressable ||
         (offset + low * element >= 0 &&
          offset + (high + 1) * element <= static_cast<Wide>(kBytes));
}

// Takes the tensor in, reads it, hands it out again. The deleter is called once, on success and on
// failure.
template <typename Managed>
void Exchange(Fields* fields, Managed managed) {
  managed.dl_tensor = fields->tensor;
  managed.manager_ctx = fields;
  managed.deleter = nullptr;
  if (fields->has_deleter)
    managed.deleter = [](Managed* self) { ++static_cast<Fields*>(self->manager_ctx)->deleted; };
  fields->deleted = 0;
  {
    const Result<Tensor> tensor = ImportDlpack(&managed);
    if (tensor.ok() && tensor->device().is_host() && fields->tensor.device.device_type == kDLCPU) {
      unsigned sum = 0;
      const auto* bytes = static_cast<const unsigned char*>(tensor->raw());
      for (size_t i = 0; i < tensor->bytes(); ++i) sum += bytes[i];
      Require(sum == 0, "the bytes are the producer's");
      if (const auto out = ExportDlpack(*tensor); out.ok()) (*out)->deleter(*out);
      if (const auto out = ExportLegacyDlpack(*tensor); out.ok()) (*out)->deleter(*out);
    }
  }
  Require(fields->deleted == (fields->has_deleter ? 1 : 0), "the deleter is called once");
}

}  // namespace
}  // namespace caesura::fuzz

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace caesura::fuzz;
  Bytes input(data, size);
  Fields fields;
  Decode(input, &fields);
  if (!IsHonest(fields)) return 0;
  DLManagedTensorVersioned versioned = {};
  versioned.version = {fields.major, 0};
  versioned.flags = fields.flags;
  Exchange(&fields, versioned);
  Exchange(&fields, DLManagedTensor{});
  return 0;
}
