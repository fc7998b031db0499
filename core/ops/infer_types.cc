// SPDX-License-Identifier: Apache-2.0
#include "core/ops/infer_types.h"

#include <algorithm>
#include <utility>

namespace caesura {

constexpr int64_t kMostDims = 64;  // a file may name any number

Status SameDType(Graph&, Node* node) {
  const Value* input = node->input(0);
  if (input == nullptr || !input->type().is_tensor()) return {};
  for (Value* output : node->outputs()) {
    if (output != nullptr && !output->type().is_tensor())
      output->set_type(ValueType::Tensor(input->dtype()));
  }
  return {};
}

Status SameTypes(Graph&, Node* node) {
  for (size_t i = 0; i < node->outputs().size() && i < node->inputs().size(); ++i) {
    if (node->outputs()[i] != nullptr && node->inputs()[i] != nullptr)
      node->outputs()[i]->set_type(node->inputs()[i]->type());
  }
  return {};
}

DType ResultDType(const Node& node) {
  return static_cast<DType>(
      node.Attr<int64_t>("dtype", static_cast<int64_t>(node.input(0)->dtype())));
}

Status ShapeSaidBy(int input, Graph& graph, Node* node) {
  const Value *x = node->input(0), *target = node->input(input);
  Value* y = node->output(0);
  if (x == nullptr || target == nullptr || !x->type().is_tensor() || y == nullptr) return {};
  if (y->type().is_tensor() && y->type().shape) return {};
  ValueType type = ValueType::Tensor(ResultDType(*node));
  const Node* producer = target->producer();
  if (const Tensor* constant = graph.Initializer(target)) {
    const std::vector<int64_t> dims = constant->ToVector<int64_t>();
    const bool fit = std::all_of(dims.begin(), dims.end(), [](int64_t dim) { return dim >= 0; });
    if (fit) type = ValueType::Tensor(type.dtype, Shape(dims));
  } else if (producer != nullptr && producer->Is("Shape") && producer->attributes().empty()) {
    type.shape = producer->input(0)->type().shape;
  } else if (const auto& sizes = target->type().shape; sizes && sizes->size() == 1 &&
                                                       sizes->front().known() &&
                                                       sizes->front().value <= kMostDims) {
    type.shape.emplace(sizes->front().value);  // of unknown dims
  }
  y->set_type(std::move(type));
  return {};
}

void SetOutputType(const Node& node, int output, DType dtype,
                   std::optional<std::vector<Dim>> shape) {
  Value* value = node.output(output);
  if (value == nullptr || (value->type().is_tensor() && value->type().shape)) return;
  ValueType type = ValueType::Tensor(dtype);
  type.shape = std::move(shape);
  value->set_type(std::move(type));
}

}  // namespace caesura
