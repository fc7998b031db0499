// SPDX-License-Identifier: Apache-2.0
#include "core/gradient/node_writer.h"

#include <algorithm>

#include "core/graph/op_schema.h"
#include "core/graph/op_def.h"

namespace caesura::gradient {
namespace {

// [start, end) of a shape as the Shape op clamps them.
std::pair<int64_t, int64_t> DimRange(int64_t start, int64_t end, int64_t rank) {
  auto clamp = [rank](int64_t i) { return std::clamp<int64_t>(i < 0 ? i + rank : i, 0, rank); };
  return {clamp(start), end == 0 ? rank : clamp(end)};
}

}  // namespace

ValueType SequenceOf(DType dtype) {
  return {ValueType::Kind::kSequence, DType::kUndefined, DType::kUndefined, std::nullopt,
          std::make_shared<const ValueType>(ValueType::Tensor(dtype))};
}

ValueType OutputType(const std::string& op_type, const std::vector<Value*>& inputs,
                     const AttributeMap& attributes) {
  auto type_of = [&](size_t i) {
    ValueType type = i < inputs.size() && inputs[i] != nullptr ? inputs[i]->type() : ValueType{};
    type.shape.reset();
    return type;
  };
  const DType result = OpDefOf(op_type).result;
  if (result != DType::kUndefined) return ValueType::Tensor(result);
  if (op_type == "If" || op_type == "Loop" || op_type == "Scan" || op_type == "SequenceEmpty")
    return {};
  if (op_type == "Cast") {
    auto it = attributes.find("to");
    const int64_t* to = it == attributes.end() ? nullptr : std::get_if<int64_t>(&it->second);
    return to == nullptr ? ValueType{} : ValueType::Tensor(static_cast<DType>(*to));
  }
  if (op_type == "SequenceAt" || op_type == "ConcatFromSequence") {
    const ValueType type = type_of(0);
    return type.element == nullptr ? ValueType{} : ValueType::Tensor(type.element->dtype);
  }
  if (op_type == "SplitToSequence" || op_type == "SequenceConstruct")
    return SequenceOf(type_of(0).dtype);
  if (op_type == "OneHot") return type_of(2);
  return type_of(op_type == "Where" || op_type == "CastLike" ? 1 : 0);
}

std::string NodeWriter::FreshName(const std::string& stem) {
  return graph_.UniqueName(prefix_ + (origin_ == nullptr ? "" : origin_->name() + "/") + "grad/" +
                           stem);
}

Value* NodeWriter::FreshValue(const std::string& stem, ValueType type) {
  return graph_.AddValue(FreshName(stem), std::move(type));
}

Node* NodeWriter::Finish(Node* node) {
  node->set_phase(phase_);
  node->set_since_version(SinceVersion(node->op_type(), node->domain()));
  if (origin_ != nullptr) node->set_source(origin_->source());
  nodes_.push_back(node);
  return node;
}

Node* NodeWriter::Add(const std::string& op_type, std::vector<Value*> inputs,
                      AttributeMap attributes, const std::string& domain, int output_count) {
  const ValueType type = OutputType(op_type, inputs, attributes);
  std::vector<Value*> outputs;
  for (int i = 0; i < output_count; ++i) outputs.push_back(FreshValue(op_type, type));
  return AddWithOutputs(op_type, std::move(inputs), std::move(outputs), std::move(attributes),
                        domain);
}

Node* NodeWriter::AddWithOutputs(const std::string& op_type, std::vector<Value*> inputs,
                                 std::vector<Value*> outputs, AttributeMap attributes,
                                 const std::string& domain) {
  while (!inputs.empty() && inputs.back() == nullptr) inputs.pop_back();
  return Finish(graph_.AddNode(op_type, std::move(inputs), std::move(outputs),
                               std::move(attributes), domain, FreshName(op_type)));
}

Value* NodeWriter::Constant(const std::string& key, Tensor tensor) {
  Value*& value = constants_[key];
  if (value == nullptr)
    value = graph_.AddInitializer(graph_.UniqueName(prefix_ + "grad/constant"), std::move(tensor));
  return value;
}

Value* NodeWriter::Scalar(double number, DType dtype) {
  Tensor tensor = Tensor::Zeros(dtype, Shape{});
  auto write = [&](auto tag) {
    using T = typename decltype(tag)::type;
    *tensor.data<T>() = static_cast<T>(number);
  };
  DispatchNumeric(dtype, write) || DispatchDType<bool>(dtype, write);
  char digits[40];
  std::snprintf(digits, sizeof(digits), "%a", number);
  return Constant(DTypeName(dtype) + std::string(" ") + digits, std::move(tensor));
}

Value* NodeWriter::Ints(const std::vector<int64_t>& values) {
  std::string key = "[";
  for (int64_t v : values) key += std::to_string(v) + ",";
  return Constant(key, Tensor::Of<int64_t>(Shape{static_cast<int64_t>(values.size())}, values));
}

Value* NodeWriter::Int(int64_t value) { return Scalar(static_cast<double>(value), DType::kInt64); }

Value* NodeWriter::ShapeOf(Value* value, int64_t start, int64_t end) {
  if (value->type().is_tensor() && value->type().shape) {
    const auto& dims = *value->type().shape;
    const auto [first, last] = DimRange(start, end, static_cast<int64_t>(dims.size()));
    std::vector<int64_t> known;
    for (int64_t i = first; i < last && dims[i].known(); ++i) known.push_back(dims[i].value);
    if (static_cast<int64_t>(known.size()) == std::max<int64_t>(last - first, 0))
      return Ints(known);
  }
  Value*& shape = shapes_[{value, {start, end}}];
  if (shape == nullptr) {
    AttributeMap attributes;
    if (start != 0) attributes["start"] = start;
    if (end != 0) attributes["end"] = end;
    shape = Add("Shape", {value}, std::move(attributes))->output(0);
  }
  return shape;
}

bool SameShape(const ValueType& a, const ValueType& b) {
  if (!a.shape || !b.shape || a.shape->size() != b.shape->size()) return false;
  for (size_t i = 0; i < a.shape->size(); ++i) {
    const Dim& dim = (*a.shape)[i];
    const bool stated = dim.known() || !dim.symbol.empty();
    if (!stated || !(dim == (*b.shape)[i])) return false;
  }
  return true;
}

int KnownRank(const ValueType& type) {
  return type.shape ? static_cast<int>(type.shape->size()) : -1;
}

}  // namespace caesura::gradient
