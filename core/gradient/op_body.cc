// SPDX-License-Identifier: Apache-2.0
#include "core/gradient/op_body.h"

#include <utility>

namespace caesura::gradient {

void OpBody::SetOutput(int i, Expr value) {
  if (!Wants(i)) return;
  const DType dtype = node_.output(i)->dtype();
  if (dtype != DType::kUndefined) value = Cast(value, dtype);
  results_[i] = value.value();
}

Value* OpBody::result(int i) const {
  auto it = results_.find(i);
  return it == results_.end() ? nullptr : it->second;
}

Expr OpBody::GraphInput(const char* name) {
  Graph& graph = writer_->graph();
  if (graph.parent() != nullptr) {
    Refuse("draws random numbers in a body of control flow");
    return Int(0, input(0));
  }
  Value* value = graph.FindValue(name);
  if (value == nullptr) value = graph.AddInput(name, ValueType::Tensor(DType::kInt64, Shape{}));
  return Wrap(value);
}

Expr Shaped(Expr x, Expr like) {
  ValueType type = like.value()->type();
  type.dtype = x.dtype();
  x.value()->set_type(std::move(type));
  return x;
}

InnerGraph::InnerGraph(const std::string& name, NodeWriter& outer)
    : outer_(outer),
      graph_(std::make_shared<Graph>(name, &outer.graph())),
      writer_(*graph_, Phase::kForward, outer.FreshName(name) + "/") {}

Expr InnerGraph::Input(const std::string& name, DType dtype, const std::vector<int64_t>& dims) {
  ValueType type = ValueType::Tensor(dtype);
  type.shape.emplace();
  for (const int64_t dim : dims) type.shape->push_back(Dim{dim, ""});
  return {graph_->AddInput(outer_.FreshName(name), std::move(type)), &writer_};
}

}  // namespace caesura::gradient
