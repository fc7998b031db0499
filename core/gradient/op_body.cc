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

Exprs ScanOver(const Exprs& states, const Exprs& inputs, int64_t axis, bool is_reversed,
               const std::function<Exprs(const Exprs&, const Exprs&)>& step) {
  InnerGraph body("step", *inputs[0].writer());
  const auto unknown = [](int rank) { return std::vector<int64_t>(rank, -1); };
  Exprs before, slices, all = states;
  for (const Expr& state : states)
    before.push_back(body.Input("state", state.dtype(), unknown(inputs[0].rank() - 1)));
  for (const Expr& input : inputs) {
    slices.push_back(body.Input("slice", input.dtype(), unknown(input.rank() - 1)));
    all.push_back(input);
  }
  for (const Expr& output : step(before, slices)) body.Output(Op("Identity", {output}));
  const std::vector<int64_t> axes(inputs.size(), axis), turned(inputs.size(), is_reversed);
  const Exprs out = Ops("Scan", all, static_cast<int>(states.size()) + 1,
                        {{"body", body.graph()},
                         {"num_scan_inputs", static_cast<int64_t>(inputs.size())},
                         {"scan_input_axes", axes},
                         {"scan_input_directions", turned},
                         {"scan_output_axes", std::vector<int64_t>{axis}},
                         {"scan_output_directions", std::vector<int64_t>{is_reversed}}});
  for (size_t i = 0; i < states.size(); ++i)
    out[i].value()->set_type(ValueType::Tensor(states[i].dtype()));
  ValueType type = ValueType::Tensor(body.graph()->outputs().back()->dtype());
  type.shape = std::vector<Dim>(inputs[0].rank());
  out.back().value()->set_type(std::move(type));
  return out;
}

}  // namespace caesura::gradient
