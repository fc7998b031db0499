// SPDX-License-Identifier: Apache-2.0
// Types and attributes; tensors are in tensor_proto.cc.
#include "core/onnx/onnx_proto.h"

#include "core/base/status_macros.h"
#include "core/base/utf8.h"

namespace caesura {
namespace {

using onnx::AttributeProto;

ValueType TensorType(int elem_type, bool has_shape, const onnx::TensorShapeProto& shape) {
  ValueType out = ValueType::Tensor(DType::kUndefined);
  Result<DType> dtype = DTypeFromProto(elem_type);
  if (dtype.ok()) out.dtype = *dtype;
  if (has_shape) {
    out.shape.emplace();
    for (const auto& dim : shape.dim()) out.shape->push_back(DimFromProto(dim));
  }
  return out;
}

ValueType Wrapped(ValueType::Kind kind, const onnx::TypeProto& element) {
  ValueType out;
  out.kind = kind;
  out.element = std::make_shared<const ValueType>(TypeFromProto(element));
  return out;
}

Result<std::vector<Tensor>> TensorsFromProto(const AttributeProto& proto) {
  std::vector<Tensor> out;
  for (const auto& tensor : proto.tensors()) {
    ASSIGN_OR_RETURN(Tensor value, TensorFromProto(tensor));
    out.push_back(std::move(value));
  }
  return out;
}

}  // namespace

Dim DimFromProto(const onnx::TensorShapeProto::Dimension& proto) {
  Dim dim;
  if (proto.has_dim_value() && proto.dim_value() >= 0) dim.value = proto.dim_value();
  if (proto.has_dim_param()) dim.symbol = EscapedToUtf8(proto.dim_param());
  return dim;
}

void DimToProto(const Dim& dim, onnx::TensorShapeProto::Dimension* proto) {
  if (dim.known()) {
    proto->set_dim_value(dim.value);
  } else if (!dim.symbol.empty()) {
    proto->set_dim_param(dim.symbol);
  }
}

ValueType TypeFromProto(const onnx::TypeProto& proto) {
  switch (proto.value_case()) {
    case onnx::TypeProto::kTensorType: {
      const auto& tensor = proto.tensor_type();
      return TensorType(tensor.elem_type(), tensor.has_shape(), tensor.shape());
    }
    case onnx::TypeProto::kSequenceType:
      return Wrapped(ValueType::Kind::kSequence, proto.sequence_type().elem_type());
    case onnx::TypeProto::kOptionalType:
      return Wrapped(ValueType::Kind::kOptional, proto.optional_type().elem_type());
    case onnx::TypeProto::kMapType: {
      ValueType out = Wrapped(ValueType::Kind::kMap, proto.map_type().value_type());
      Result<DType> key = DTypeFromProto(proto.map_type().key_type());
      if (key.ok()) out.key = *key;
      return out;
    }
    default: return {};
  }
}

void TypeToProto(const ValueType& type, onnx::TypeProto* proto) {
  switch (type.kind) {
    case ValueType::Kind::kUnknown: return;
    case ValueType::Kind::kTensor: {
      auto* tensor = proto->mutable_tensor_type();
      tensor->set_elem_type(static_cast<int>(type.dtype));
      if (!type.shape) return;
      auto* shape = tensor->mutable_shape();
      for (const Dim& dim : *type.shape) DimToProto(dim, shape->add_dim());
      return;
    }
    case ValueType::Kind::kSequence:
      if (type.element)
        TypeToProto(*type.element, proto->mutable_sequence_type()->mutable_elem_type());
      return;
    case ValueType::Kind::kOptional:
      if (type.element)
        TypeToProto(*type.element, proto->mutable_optional_type()->mutable_elem_type());
      return;
    case ValueType::Kind::kMap:
      proto->mutable_map_type()->set_key_type(static_cast<int>(type.key));
      if (type.element) TypeToProto(*type.element, proto->mutable_map_type()->mutable_value_type());
      return;
  }
}

Result<Attribute> AttributeFromProto(const AttributeProto& proto) {
  switch (proto.type()) {
    case AttributeProto::INT: return Attribute(static_cast<int64_t>(proto.i()));
    case AttributeProto::FLOAT: return Attribute(proto.f());
    case AttributeProto::STRING: return Attribute(std::string(proto.s()));
    case AttributeProto::INTS:
      return Attribute(std::vector<int64_t>(proto.ints().begin(), proto.ints().end()));
    case AttributeProto::FLOATS:
      return Attribute(std::vector<float>(proto.floats().begin(), proto.floats().end()));
    case AttributeProto::STRINGS:
      return Attribute(std::vector<std::string>(proto.strings().begin(), proto.strings().end()));
    case AttributeProto::TENSOR: {
      ASSIGN_OR_RETURN(Tensor tensor, TensorFromProto(proto.t()));
      return Attribute(std::move(tensor));
    }
    case AttributeProto::TENSORS: {
      ASSIGN_OR_RETURN(std::vector<Tensor> tensors, TensorsFromProto(proto));
      return Attribute(std::move(tensors));
    }
    case AttributeProto::TYPE_PROTO: return Attribute(TypeFromProto(proto.tp()));
    default:
      return Unsupported("attribute '" + proto.name() + "' is of kind " +
                         AttributeProto::AttributeType_Name(proto.type()) +
                         ", which nodes cannot have");
  }
}

namespace {

// One overload per kind of attribute; the type is set last.
struct AttributeWriter {
  AttributeProto* proto;
  bool operator()(int64_t v) const { return proto->set_i(v), Typed(AttributeProto::INT); }
  bool operator()(float v) const { return proto->set_f(v), Typed(AttributeProto::FLOAT); }
  bool operator()(const std::string& v) const {
    return proto->set_s(v), Typed(AttributeProto::STRING);
  }
  bool operator()(const std::vector<int64_t>& v) const {
    for (int64_t x : v) proto->add_ints(x);
    return Typed(AttributeProto::INTS);
  }
  bool operator()(const std::vector<float>& v) const {
    for (float x : v) proto->add_floats(x);
    return Typed(AttributeProto::FLOATS);
  }
  bool operator()(const std::vector<std::string>& v) const {
    for (const std::string& x : v) proto->add_strings(x);
    return Typed(AttributeProto::STRINGS);
  }
  bool operator()(const Tensor& v) const {
    return TensorToProto(v, proto->mutable_t()), Typed(AttributeProto::TENSOR);
  }
  bool operator()(const std::vector<Tensor>& v) const {
    for (const Tensor& x : v) TensorToProto(x, proto->add_tensors());
    return Typed(AttributeProto::TENSORS);
  }
  bool operator()(const ValueType& v) const {
    return TypeToProto(v, proto->mutable_tp()), Typed(AttributeProto::TYPE_PROTO);
  }
  bool operator()(const std::shared_ptr<Graph>&) const { return false; }
  bool operator()(const std::vector<std::shared_ptr<Graph>>&) const { return false; }

  bool Typed(AttributeProto::AttributeType type) const {
    proto->set_type(type);
    return true;
  }
};

}  // namespace

bool AttributeToProto(const std::string& name, const Attribute& attribute, AttributeProto* proto) {
  proto->set_name(name);
  return std::visit(AttributeWriter{proto}, attribute);
}

}  // namespace caesura
