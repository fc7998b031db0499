// SPDX-License-Identifier: Apache-2.0
#include "core/onnx/value_reader.h"

#include <climits>
#include <utility>
#include <vector>

#include "core/base/status_macros.h"
#include "core/onnx/onnx_proto.h"
#pragma GCC diagnostic push
#pragma GCC diagnostic ignored "-Wunused-parameter"
#include "onnx/onnx-data.pb.h"
#pragma GCC diagnostic pop

namespace caesura {
namespace {

using onnx::OptionalProto;
using onnx::SequenceProto;

Result<RuntimeValue> FromProto(const onnx::TensorProto& proto) {
  if (proto.data_location() == onnx::TensorProto::EXTERNAL)
    return Unsupported("a value with external data");
  ASSIGN_OR_RETURN(Tensor tensor, TensorFromProto(proto));
  return RuntimeValue(std::move(tensor));
}

Result<RuntimeValue> FromProto(const OptionalProto& proto);
Result<RuntimeValue> FromProto(const SequenceProto& proto);

template <typename Protos>
Result<RuntimeValue> FromProtos(const Protos& protos) {
  std::vector<RuntimeValue> elements;
  for (const auto& proto : protos) {
    ASSIGN_OR_RETURN(RuntimeValue element, FromProto(proto));
    elements.push_back(std::move(element));
  }
  return RuntimeValue::Sequence(std::move(elements));
}

// protobuf itself ends the recursion: it takes no message that is nested deeper than 100 levels.
Result<RuntimeValue> FromProto(const SequenceProto& proto) {
  switch (proto.elem_type()) {
    case SequenceProto::UNDEFINED:  // of no elements
    case SequenceProto::TENSOR: return FromProtos(proto.tensor_values());
    case SequenceProto::SEQUENCE: return FromProtos(proto.sequence_values());
    case SequenceProto::OPTIONAL: return FromProtos(proto.optional_values());
    default: return Unsupported("a sequence of maps or sparse tensors");
  }
}

Result<RuntimeValue> FromProto(const OptionalProto& proto) {
  switch (proto.elem_type()) {
    case OptionalProto::UNDEFINED: return RuntimeValue();
    case OptionalProto::TENSOR:
      return proto.has_tensor_value() ? FromProto(proto.tensor_value()) : RuntimeValue();
    case OptionalProto::SEQUENCE:
      return proto.has_sequence_value() ? FromProto(proto.sequence_value()) : RuntimeValue();
    case OptionalProto::OPTIONAL:
      return proto.has_optional_value() ? FromProto(proto.optional_value()) : RuntimeValue();
    default: return Unsupported("an optional of a map or sparse tensor");
  }
}

template <typename Proto>
Result<RuntimeValue> Parse(std::string_view bytes) {
  Proto proto;
  if (bytes.size() > INT_MAX ||
      !proto.ParseFromArray(bytes.data(), static_cast<int>(bytes.size()))) {
    return InvalidModel("the bytes are no " + proto.GetTypeName());
  }
  return FromProto(proto);
}

}  // namespace

Result<RuntimeValue> ReadValueBytes(std::string_view bytes, const ValueType& type) {
  switch (type.kind) {
    case ValueType::Kind::kTensor: return Parse<onnx::TensorProto>(bytes);
    case ValueType::Kind::kSequence: return Parse<SequenceProto>(bytes);
    case ValueType::Kind::kOptional: return Parse<OptionalProto>(bytes);
    case ValueType::Kind::kMap: return Unsupported("a map");
    case ValueType::Kind::kUnknown: break;
  }
  return Unsupported("a value of unknown type");
}

}  // namespace caesura
