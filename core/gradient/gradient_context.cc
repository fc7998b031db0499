// SPDX-License-Identifier: Apache-2.0
#include "core/gradient/gradient_context.h"

#include "core/gradient/gradient_rules.h"
#include "core/gradient/sequence_map.h"

namespace caesura::gradient {

Value* GradientStore::Find(const Value* value) const {
  auto it = gradients_.find(value);
  return it == gradients_.end() ? nullptr : it->second;
}

void GradientStore::Add(const Value* value, Value* gradient) {
  const bool is_new = added_.insert(gradient).second;
  Value*& slot = gradients_[value];
  if (slot == nullptr) {
    slot = gradient;
    return;
  }
  // Slices are added to the sum so far where it lies: no tensor of zeros, and no second one of the
  // value's size. The slices' node must be the newest: then the sum exists before it, and no other
  // node reads the slices. No other value may have the slices as its gradient, as the terms of a
  // sum do, which share one.
  Node* scatter = writer_->nodes().empty() ? nullptr : writer_->nodes().back();
  if (is_new && scatter != nullptr && scatter == gradient->producer() &&
      scatter->Is("GatherGrad", kCaesuraDomain) && scatter->inputs().size() == 3) {
    scatter->SetInput(3, slot);
    slot = gradient;
    return;
  }
  slot = SumOf({slot, writer_}, {gradient, writer_}).value();
  slot->set_type(value->type());
}

const Tensor* GradientContext::ConstantInput(int i) const {
  return HasInput(i) && path_.Contains(node_.input(i)) ? nullptr : Constant(i);
}

bool GradientContext::Needs(int i) const {
  const Value* value = node_.input(i);
  return value != nullptr && path_.Contains(value) && InputCarries(rule_, node_, i);
}

Expr GradientContext::dY(int i) const {
  const Value* output = node_.output(i);
  Value* gradient = output == nullptr ? nullptr : store_->Find(output);
  return gradient == nullptr ? Expr() : Expr(gradient, writer_);
}

Expr GradientContext::dYOrZeros(int i) const {
  const Expr gradient = dY(i);
  return gradient || node_.output(i) == nullptr ? gradient : ZerosOf(output(i));
}

void GradientContext::SetInputGradient(int i, Expr gradient) {
  if (!gradient || !Needs(i)) return;
  if (rule_ != nullptr && rule_->broadcasts &&
      !SameShape(node_.output(0)->type(), node_.input(i)->type())) {
    gradient = SumTo(gradient, input(i));
  }
  SetValueGradient(node_.input(i), gradient);
}

void GradientContext::SetValueGradient(Value* value, Expr gradient) {
  if (!gradient || !path_.Contains(value)) return;
  const ValueType& type = value->type();
  const DType dtype = gradient.dtype();
  if (type.is_tensor() && dtype != DType::kUndefined && type.dtype != DType::kUndefined &&
      dtype != type.dtype) {
    gradient = Cast(gradient, type.dtype);
  }
  // A fresh value learns its shape; a gradient that is passed on knows its own.
  if (!gradient.value()->type().shape && gradient.value()->producer() != nullptr)
    gradient.value()->set_type(type);
  store_->Add(value, gradient.value());
}

void GradientContext::SetInputGradients(const std::string& training_op, const Exprs& inputs,
                                        const std::vector<int>& inputs_of,
                                        AttributeMap attributes) {
  std::vector<Value*> values, outputs;
  for (const Expr& input : inputs) values.push_back(input.value());
  size_t last = 0;
  for (size_t k = 0; k < inputs_of.size(); ++k) {
    const bool needed = inputs_of[k] >= 0 && Needs(inputs_of[k]);
    outputs.push_back(needed ? writer_->FreshValue(training_op, node_.input(inputs_of[k])->type())
                             : nullptr);
    if (needed) last = k + 1;
  }
  outputs.resize(last);
  writer_->AddWithOutputs(training_op, values, outputs, std::move(attributes), kCaesuraDomain);
  for (size_t k = 0; k < last; ++k) {
    if (outputs[k] != nullptr) SetInputGradient(inputs_of[k], Wrap(outputs[k]));
  }
  if (node_.outputs().empty())
    node_.graph()->RemoveNode(&node_);  // another stands in its place: see TrainingOutput
}

Expr GradientContext::EnsureOutput(int i, ValueType type) {
  if (node_.output(i) == nullptr) {
    Graph& graph = writer_->graph();
    node_.SetOutput(i, graph.AddValue(graph.UniqueName(node_.name() + "/saved"), std::move(type)));
  }
  return output(i);
}

Expr GradientContext::TrainingOutput(const std::string& training_op, int i, ValueType type) {
  if (node_.Is(training_op.c_str(), kCaesuraDomain)) return EnsureOutput(i, std::move(type));
  Graph& graph = *node_.graph();
  std::vector<Value*> outputs = graph.ReleaseOutputs(&node_);
  outputs.resize(i, nullptr);
  outputs.push_back(graph.AddValue(graph.UniqueName(node_.name() + "/saved"), std::move(type)));
  graph.InsertBefore(node_, {training_op, node_.inputs(), outputs, node_.attributes(),
                             kCaesuraDomain, graph.UniqueName(node_.name() + "/training")});
  return Wrap(outputs[i]);
}

}  // namespace caesura::gradient
