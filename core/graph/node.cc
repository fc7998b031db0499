// SPDX-License-Identifier: Apache-2.0
#include "core/graph/graph.h"

#include <algorithm>
#include <cassert>

namespace caesura {

ValueType ValueType::Tensor(DType dtype, const Shape& shape) {
  ValueType out = Tensor(dtype);
  out.shape.emplace();
  for (int64_t dim : shape) out.shape->push_back(Dim{dim, ""});
  return out;
}

std::optional<Shape> ValueType::ConcreteShape() const {
  if (!shape) return std::nullopt;
  std::vector<int64_t> dims;
  for (const Dim& dim : *shape) {
    if (!dim.known()) return std::nullopt;
    dims.push_back(dim.value);
  }
  return Shape(dims);
}

std::string ValueType::ToString() const {
  if (kind == Kind::kSequence) return "sequence(" + (element ? element->ToString() : "?") + ")";
  if (kind == Kind::kOptional) return "optional(" + (element ? element->ToString() : "?") + ")";
  if (kind == Kind::kMap)
    return std::string("map(") + DTypeName(key) + ", " + (element ? element->ToString() : "?") +
           ")";
  if (kind == Kind::kUnknown) return "unknown";
  std::string out = DTypeName(dtype);
  if (!shape) return out + "[...]";
  out += "[";
  for (size_t i = 0; i < shape->size(); ++i) {
    const Dim& dim = (*shape)[i];
    if (i) out += ", ";
    out += dim.known() ? std::to_string(dim.value) : dim.symbol.empty() ? "?" : dim.symbol;
  }
  return out + "]";
}

void Node::SetInput(int i, Value* value) {
  if (i >= static_cast<int>(inputs_.size())) inputs_.resize(i + 1, nullptr);
  if (inputs_[i] != nullptr) Graph::RemoveUse(inputs_[i], this, i);
  inputs_[i] = value;
  if (value != nullptr) graph_->AddUse(value, this, i);
}

void Node::TruncateInputs(int count) {
  for (int i = count; i < static_cast<int>(inputs_.size()); ++i) SetInput(i, nullptr);
  if (count < static_cast<int>(inputs_.size())) inputs_.resize(count);
}

void Node::SetOutput(int i, Value* value) {
  if (i >= static_cast<int>(outputs_.size())) outputs_.resize(i + 1, nullptr);
  assert(value->producer_ == nullptr);
  outputs_[i] = value;
  value->producer_ = this;
}

std::vector<Graph*> Node::Subgraphs() const {
  std::vector<Graph*> out;
  for (const auto& [name, attribute] : attributes_) {
    if (auto* one = std::get_if<std::shared_ptr<Graph>>(&attribute)) out.push_back(one->get());
    if (auto* many = std::get_if<std::vector<std::shared_ptr<Graph>>>(&attribute)) {
      for (const auto& graph : *many) out.push_back(graph.get());
    }
  }
  return out;
}

std::string Node::Label() const {
  return "[" + (domain_.empty() ? "" : domain_ + "::") + op_type_ + " '" + name_ + "']";
}

}  // namespace caesura
