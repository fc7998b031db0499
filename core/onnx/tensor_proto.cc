// SPDX-License-Identifier: Apache-2.0
// Tensors in files: raw little-endian bytes or typed fields, several elements to a byte below 8
// bits.
#include <algorithm>
#include <cassert>
#include <cstring>
#include <limits>

#include "core/base/status_macros.h"
#include "core/onnx/onnx_proto.h"

namespace caesura {
namespace {

using onnx::TensorProto;

std::string Named(const TensorProto& proto) { return "tensor '" + proto.name() + "'"; }

bool IsSignedPacked(DType dtype) { return dtype == DType::kInt4 || dtype == DType::kInt2; }

// Spreads `count` elements of `bits` bits over one byte each; signed ones keep their sign.
void Unpack(DType dtype, const uint8_t* packed, int64_t count, uint8_t* out) {
  const int bits = DTypeFileBits(dtype), per_byte = 8 / bits;
  const int mask = (1 << bits) - 1, sign = IsSignedPacked(dtype) ? 1 << (bits - 1) : 0;
  for (int64_t i = 0; i < count; ++i) {
    const int value = (packed[i / per_byte] >> (bits * (i % per_byte))) & mask;
    out[i] = static_cast<uint8_t>((value ^ sign) - sign);
  }
}

// Copies values of another integer type, refusing those that do not fit.
template <typename To, typename From>
Status CopyNarrow(const TensorProto& proto, const From& values, To* out) {
  for (const auto value : values) {
    if (static_cast<int64_t>(value) < static_cast<int64_t>(std::numeric_limits<To>::min()) ||
        static_cast<int64_t>(value) > static_cast<int64_t>(std::numeric_limits<To>::max())) {
      return InvalidModel(Named(proto) + " stores " + std::to_string(value) +
                          ", which its type cannot hold");
    }
    *out++ = static_cast<To>(value);
  }
  return {};
}

Status CopyInt32Field(const TensorProto& proto, DType dtype, void* out) {
  const auto& field = proto.int32_data();
  switch (dtype) {
    case DType::kInt32:
      std::copy(field.begin(), field.end(), static_cast<int32_t*>(out));
      return {};
    case DType::kInt16: return CopyNarrow(proto, field, static_cast<int16_t*>(out));
    case DType::kInt8: return CopyNarrow(proto, field, static_cast<int8_t*>(out));
    case DType::kUInt16:
    case DType::kFloat16:
    case DType::kBFloat16: return CopyNarrow(proto, field, static_cast<uint16_t*>(out));
    case DType::kBool:
      std::transform(field.begin(), field.end(), static_cast<uint8_t*>(out),
                     [](int32_t v) { return v != 0; });
      return {};
    default:
      return CopyNarrow(proto, field, static_cast<uint8_t*>(out));  // uint8 and the 8-bit floats
  }
}

// Fields of int32 with one packed byte in each; some writers fill all four bytes.
Status UnpackInt32Field(const TensorProto& proto, DType dtype, int64_t elements, void* out) {
  const auto& field = proto.int32_data();
  const int64_t bytes = static_cast<int64_t>(FileBytes(dtype, elements));
  std::string packed(static_cast<size_t>(bytes), '\0');
  if (field.size() == bytes) {
    RETURN_IF_ERROR(CopyNarrow(proto, field, reinterpret_cast<uint8_t*>(packed.data())));
  } else if (field.size() == (bytes + 3) / 4) {
    for (int64_t i = 0; i < bytes; ++i) {
      packed[i] =
          static_cast<char>(static_cast<uint32_t>(field[static_cast<int>(i / 4)]) >> (8 * (i % 4)));
    }
  } else {
    return InvalidModel(Named(proto) + " stores " + std::to_string(field.size()) +
                        " packed values for " + std::to_string(elements) + " elements");
  }
  Unpack(dtype, reinterpret_cast<const uint8_t*>(packed.data()), elements,
         static_cast<uint8_t*>(out));
  return {};
}

// The data field that holds the elements of `dtype`, and the entries that it must have.
struct Field {
  const char* name;
  int stored;
  int64_t expected;
};

Field TypedField(const TensorProto& proto, DType dtype, int64_t elements) {
  switch (dtype) {
    case DType::kFloat32: return {"float_data", proto.float_data_size(), elements};
    case DType::kComplex64: return {"float_data", proto.float_data_size(), 2 * elements};
    case DType::kFloat64: return {"double_data", proto.double_data_size(), elements};
    case DType::kComplex128: return {"double_data", proto.double_data_size(), 2 * elements};
    case DType::kInt64: return {"int64_data", proto.int64_data_size(), elements};
    case DType::kUInt32:
    case DType::kUInt64: return {"uint64_data", proto.uint64_data_size(), elements};
    case DType::kString: return {"string_data", proto.string_data_size(), elements};
    default: return {"int32_data", proto.int32_data_size(), elements};
  }
}

int64_t StoredEntries(const TensorProto& proto) {
  return int64_t{proto.float_data_size()} + proto.double_data_size() + proto.int32_data_size() +
         proto.int64_data_size() + proto.uint64_data_size() + proto.string_data_size() +
         static_cast<int64_t>(proto.raw_data().size());
}

Status CopyTypedField(const TensorProto& proto, Tensor& out) {
  void* data = out.raw();
  switch (out.dtype()) {
    case DType::kFloat32:
    case DType::kComplex64:
      std::copy(proto.float_data().begin(), proto.float_data().end(), static_cast<float*>(data));
      return {};
    case DType::kFloat64:
    case DType::kComplex128:
      std::copy(proto.double_data().begin(), proto.double_data().end(), static_cast<double*>(data));
      return {};
    case DType::kInt64:
      std::copy(proto.int64_data().begin(), proto.int64_data().end(), static_cast<int64_t*>(data));
      return {};
    case DType::kUInt64:
      std::copy(proto.uint64_data().begin(), proto.uint64_data().end(),
                static_cast<uint64_t*>(data));
      return {};
    case DType::kUInt32:
      return CopyNarrow(proto, proto.uint64_data(), static_cast<uint32_t*>(data));
    case DType::kString:
      std::copy(proto.string_data().begin(), proto.string_data().end(),
                static_cast<std::string*>(data));
      return {};
    default: return CopyInt32Field(proto, out.dtype(), data);
  }
}

}  // namespace

Result<DType> DTypeFromProto(int data_type) {
  if (data_type <= 0 || data_type >= kDTypeCount) {
    return Unsupported("element type " + std::to_string(data_type) + " is not known");
  }
  return static_cast<DType>(data_type);
}

size_t FileBytes(DType dtype, int64_t elements) {
  assert(dtype != DType::kString);
  const int bits = DTypeFileBits(dtype);
  if (bits >= 8) return static_cast<size_t>(elements) * static_cast<size_t>(bits / 8);
  const int64_t per_byte = 8 / bits;
  return static_cast<size_t>(elements / per_byte + (elements % per_byte != 0));
}

Result<Tensor> TensorFromFileBytes(DType dtype, const Shape& shape, const char* data, size_t size) {
  if (dtype == DType::kString) return InvalidModel("strings cannot be stored as raw bytes");
  const size_t expected = FileBytes(dtype, shape.elements());
  if (size != expected) {
    return InvalidModel("shape " + shape.ToString() + " of " + DTypeName(dtype) + " takes " +
                        std::to_string(expected) + " bytes, but " + std::to_string(size) +
                        " are stored");
  }
  ASSIGN_OR_RETURN(Tensor out, Tensor::Allocate(dtype, shape));
  auto* bytes = static_cast<uint8_t*>(out.raw());
  if (DTypeFileBits(dtype) < 8) {
    Unpack(dtype, reinterpret_cast<const uint8_t*>(data), shape.elements(), bytes);
  } else if (size > 0) {
    std::memcpy(bytes, data, size);
    if (dtype == DType::kBool)
      std::transform(bytes, bytes + size, bytes, [](uint8_t b) { return b != 0; });
  }
  return out;
}

Result<Tensor> TensorFromProto(const TensorProto& proto) {
  assert(proto.data_location() != TensorProto::EXTERNAL);
  Result<DType> dtype = DTypeFromProto(proto.data_type());
  if (!dtype.ok()) return dtype.status().WithPrefix(Named(proto) + ": ");
  Result<Shape> shape =
      CheckedShape(std::vector<int64_t>(proto.dims().begin(), proto.dims().end()), *dtype);
  if (!shape.ok()) return InvalidModel(Named(proto) + ": " + shape.status().message());
  const int64_t elements = shape->elements();
  if (!proto.raw_data().empty() &&
      StoredEntries(proto) == static_cast<int64_t>(proto.raw_data().size())) {
    Result<Tensor> out =
        TensorFromFileBytes(*dtype, *shape, proto.raw_data().data(), proto.raw_data().size());
    if (!out.ok()) return out.status().WithPrefix(Named(proto) + ": ");
    return out;
  }
  const Field field = TypedField(proto, *dtype, elements);
  const bool packed = DTypeFileBits(*dtype) < 8 && *dtype != DType::kString;
  if (StoredEntries(proto) != field.stored || (!packed && field.stored != field.expected)) {
    return InvalidModel(Named(proto) + " of shape " + shape->ToString() + " needs " +
                        std::to_string(field.expected) + " values in " + field.name + ", but " +
                        std::to_string(field.stored) + " are there and " +
                        std::to_string(StoredEntries(proto) - field.stored) + " elsewhere");
  }
  if (packed) {
    // The allocation follows the check of what is stored.
    const int64_t bytes = static_cast<int64_t>(FileBytes(*dtype, elements));
    if (field.stored != bytes && field.stored != (bytes + 3) / 4) {
      return InvalidModel(Named(proto) + " stores " + std::to_string(field.stored) +
                          " packed values for " + std::to_string(elements) + " elements");
    }
  }
  ASSIGN_OR_RETURN(Tensor out, Tensor::Allocate(*dtype, *std::move(shape)));
  RETURN_IF_ERROR(packed ? UnpackInt32Field(proto, *dtype, elements, out.raw())
                         : CopyTypedField(proto, out));
  return out;
}

Result<Tensor> TensorFromProto(const onnx::SparseTensorProto& proto, size_t max_bytes) {
  ASSIGN_OR_RETURN(Tensor values, TensorFromProto(proto.values()));
  const std::string name = "sparse " + Named(proto.values());
  Result<Shape> shape =
      CheckedShape(std::vector<int64_t>(proto.dims().begin(), proto.dims().end()), values.dtype());
  if (!shape.ok()) return InvalidModel(name + ": " + shape.status().message());
  const int rank = shape->rank();
  if (static_cast<size_t>(shape->elements()) >
      max_bytes / std::max<size_t>(1, DTypeSize(values.dtype()))) {
    return InvalidModel(name + " of shape " + shape->ToString() + " would take more than " +
                        std::to_string(max_bytes) + " bytes when dense");
  }
  const int64_t count = values.elements();
  Tensor indices = Tensor::Zeros(DType::kInt64, Shape{0});
  if (proto.has_indices()) {
    ASSIGN_OR_RETURN(indices, TensorFromProto(proto.indices()));
  }
  const bool linear = indices.shape().rank() == 1;
  const Shape expected = linear ? Shape{count} : Shape{count, rank};
  if (values.shape().rank() != 1 || indices.dtype() != DType::kInt64 ||
      indices.shape() != expected) {
    return InvalidModel(name + " has " + std::to_string(count) + " values and indices of shape " +
                        indices.shape().ToString());
  }
  Tensor out = Tensor::Zeros(values.dtype(), *shape);
  const int64_t* index = indices.data<int64_t>();
  const size_t size = DTypeSize(values.dtype());
  for (int64_t i = 0; i < count; ++i) {
    int64_t at = linear ? index[i] : 0;
    bool inside = linear ? at >= 0 && at < shape->elements() : true;
    for (int d = 0; !linear && d < rank; ++d) {
      const int64_t one = index[i * rank + d];
      inside = inside && one >= 0 && one < (*shape)[d];
      at = inside ? at * (*shape)[d] + one : 0;
    }
    if (!inside) return InvalidModel(name + " has an index outside of shape " + shape->ToString());
    CopyElements(values.dtype(), static_cast<char*>(values.raw()) + i * size,
                 static_cast<char*>(out.raw()) + at * size, 1);
  }
  return out;
}

std::string TensorToFileBytes(const Tensor& tensor) {
  assert(tensor.device().is_host());
  const int64_t elements = tensor.elements();
  std::string out(FileBytes(tensor.dtype(), elements), '\0');
  const int bits = DTypeFileBits(tensor.dtype());
  if (bits >= 8) {
    if (!out.empty()) std::memcpy(out.data(), tensor.raw(), out.size());
    return out;
  }
  const auto* values = static_cast<const uint8_t*>(tensor.raw());
  const int per_byte = 8 / bits, mask = (1 << bits) - 1;
  for (int64_t i = 0; i < elements; ++i) {
    out[i / per_byte] |= static_cast<char>((values[i] & mask) << (bits * (i % per_byte)));
  }
  return out;
}

void TensorHeaderToProto(const Tensor& tensor, TensorProto* proto) {
  proto->set_data_type(static_cast<int>(tensor.dtype()));
  for (int64_t dim : tensor.shape()) proto->add_dims(dim);
}

void TensorToProto(const Tensor& tensor, TensorProto* proto) {
  assert(tensor.device().is_host());
  TensorHeaderToProto(tensor, proto);
  if (tensor.dtype() == DType::kString) {
    const auto* strings = static_cast<const std::string*>(tensor.raw());
    for (int64_t i = 0; i < tensor.elements(); ++i) proto->add_string_data(strings[i]);
    return;
  }
  if (tensor.elements() > 0) proto->set_raw_data(TensorToFileBytes(tensor));
}

}  // namespace caesura
