// SPDX-License-Identifier: Apache-2.0
#include "core/onnx/opsets/opset_rewrite.h"

#include <cassert>
#include <cmath>

#include "core/graph/op_schema.h"

namespace caesura {

std::optional<int> NodeRewrite::Rank(int input) const {
  const Value* value = node_->input(input);
  if (value == nullptr || !value->type().shape) return std::nullopt;
  return static_cast<int>(value->type().shape->size());
}

std::optional<int64_t> NodeRewrite::StaticDim(int input, int axis) const {
  const std::optional<int> rank = Rank(input);
  if (!rank || axis < 0 || axis >= *rank) return std::nullopt;
  const Dim& dim = (*node_->input(input)->type().shape)[static_cast<size_t>(axis)];
  return dim.known() ? std::optional<int64_t>(dim.value) : std::nullopt;
}

DType NodeRewrite::InputDType(int input) const {
  const Value* value = node_->input(input);
  return value == nullptr ? DType::kUndefined : value->dtype();
}

// Null where it is none, or not on the host.
const Tensor* NodeRewrite::ConstantInput(int input) const {
  const Value* value = node_->input(input);
  if (value == nullptr) return nullptr;
  const Tensor* tensor = value->graph()->Initializer(value);
  if (tensor != nullptr && value->graph()->IsGraphInput(value)) return nullptr;
  if (tensor == nullptr && value->producer() != nullptr && value->producer()->Is("Constant")) {
    tensor = value->producer()->FindAttr<Tensor>("value");
  }
  return tensor == nullptr || !tensor->device().is_host() ? nullptr : tensor;
}

std::optional<std::vector<float>> NodeRewrite::ConstantFloats(int input) const {
  const Tensor* tensor = ConstantInput(input);
  if (tensor == nullptr || tensor->dtype() != DType::kFloat32) return std::nullopt;
  return tensor->ToVector<float>();
}

std::optional<std::vector<int64_t>> NodeRewrite::ConstantInts(int input) const {
  const Tensor* tensor = ConstantInput(input);
  if (tensor == nullptr) return std::nullopt;
  if (tensor->dtype() == DType::kInt64 || tensor->dtype() == DType::kInt32)
    return tensor->ToVector<int64_t>();
  if (tensor->dtype() != DType::kFloat32) return std::nullopt;
  std::vector<int64_t> out;
  for (float number : tensor->ToVector<float>()) {  // as Tile has had them
    if (!(std::fabs(number) < 1e15F)) return std::nullopt;
    out.push_back(static_cast<int64_t>(number));
  }
  return out;
}

void NodeRewrite::Add(const std::string& op_type, std::vector<Value*> inputs,
                      std::vector<Value*> outputs, AttributeMap attributes,
                      const std::string& name) {
  added_.push_back(graph_.InsertBefore(
      *node_, {op_type, std::move(inputs), std::move(outputs), std::move(attributes), "", name}));
  was_changed_ = true;
}

Value* NodeRewrite::Constant(const std::string& what, Tensor tensor) {
  Value* value = graph_.AddValue(node_->name() + "_" + what,
                                 ValueType::Tensor(tensor.dtype(), tensor.shape()));
  Add("Constant", {}, {value}, {{"value", std::move(tensor)}}, node_->name() + "_" + what);
  return value;
}

Value* NodeRewrite::Ints(const std::string& what, const std::vector<int64_t>& values) {
  return Constant(what, Tensor::Of<int64_t>({static_cast<int64_t>(values.size())}, values));
}

Value* NodeRewrite::Int(const std::string& what, int64_t value) {
  return Constant(what, Tensor::Scalar(value));
}

Value* NodeRewrite::Floats(const std::string& what, const std::vector<float>& values) {
  return Constant(what, Tensor::Of<float>({static_cast<int64_t>(values.size())}, values));
}

Value* NodeRewrite::Float(const std::string& what, float value, DType dtype) {
  assert(IsDifferentiable(dtype));
  Tensor tensor;
  DispatchFloat(dtype, [&](auto tag) {
    using T = typename decltype(tag)::type;
    tensor = Tensor::Scalar(static_cast<T>(value));
  });
  return Constant(what, std::move(tensor));
}

Value* NodeRewrite::Op(const std::string& op_type, std::vector<Value*> inputs,
                       AttributeMap attributes) {
  Value* output = NewValue(op_type);
  Add(op_type, std::move(inputs), {output}, std::move(attributes), "");
  return output;
}

Value* NodeRewrite::NewValue(const std::string& what) {
  return graph_.AddValue(graph_.UniqueName(node_->name() + "_" + what));
}

void NodeRewrite::SetInput(int i, Value* value) {
  node_->SetInput(i, value);
  was_changed_ = true;
}

void NodeRewrite::SetAttribute(const std::string& name, Attribute value) {
  node_->SetAttribute(name, std::move(value));
  was_changed_ = true;
}

void NodeRewrite::DropAttribute(const std::string& name) {
  if (!node_->HasAttribute(name)) return;
  node_->RemoveAttribute(name);
  was_changed_ = true;
}

void NodeRewrite::MoveIntsToInput(const std::string& attribute, int i) {
  const auto* values = node_->FindAttr<std::vector<int64_t>>(attribute);
  if (values == nullptr) return;
  SetInput(i, Ints(attribute, *values));
  DropAttribute(attribute);
}

bool NodeRewrite::ReadsOutputsFrom(int i) const {
  for (; i < static_cast<int>(node_->outputs().size()); ++i) {
    const Value* output = node_->output(i);
    if (output != nullptr && (!output->uses().empty() || graph_.IsGraphOutput(output))) return true;
  }
  return false;
}

void NodeRewrite::Replace(const std::string& op_type, std::vector<Value*> inputs,
                          AttributeMap attributes, int output_count) {
  assert(!ReadsOutputsFrom(output_count));
  std::vector<Value*> outputs = TakeOutputs();
  outputs.resize(std::min(outputs.size(), static_cast<size_t>(output_count)));
  Write(op_type, std::move(inputs), std::move(outputs), std::move(attributes));
}

std::vector<Value*> NodeRewrite::TakeOutputs() {
  was_replaced_ = true;
  return graph_.ReleaseOutputs(node_);
}

void NodeRewrite::Write(const std::string& op_type, std::vector<Value*> inputs,
                        std::vector<Value*> outputs, AttributeMap attributes) {
  Add(op_type, std::move(inputs), std::move(outputs), std::move(attributes),
      node_->name() + "_" + op_type);
}

}  // namespace caesura
