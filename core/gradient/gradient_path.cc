// SPDX-License-Identifier: Apache-2.0
#include "core/gradient/gradient_path.h"

#include <algorithm>
#include <cassert>

#include "core/graph/op_def.h"
#include "core/graph/op_schema.h"
#include "core/kernels/kernel.h"
#include "core/gradient/gradient_rules.h"

namespace caesura::gradient {

bool IsComplex(DType dtype) { return dtype == DType::kComplex64 || dtype == DType::kComplex128; }

bool MayCarryGradient(const ValueType& type) {
  switch (type.kind) {
    case ValueType::Kind::kUnknown: return true;
    case ValueType::Kind::kTensor:
      return type.dtype == DType::kUndefined || IsDifferentiable(type.dtype) ||
             IsComplex(type.dtype);
    case ValueType::Kind::kSequence:
    case ValueType::Kind::kOptional:
      return type.element == nullptr || MayCarryGradient(*type.element);
    case ValueType::Kind::kMap: return false;  // no op that makes or reads one has a gradient
  }
  return true;
}

bool InputCarries(const GradientRule* rule, const Node& node, int i) {
  const Value* input = i < static_cast<int>(node.inputs().size()) ? node.input(i) : nullptr;
  if (input != nullptr && !MayCarryGradient(input->type())) return false;
  if (rule == nullptr) return true;
  if (rule == &HookRule()) return !KernelDef::Lists(FindOwnOp(node)->no_gradient_inputs, i);
  return rule->has_gradient() && !KernelDef::Lists(rule->stops, i);
}

bool IsSetting(const GradientRule* rule, const Node& node, int i) {
  if (node.Is("DequantizeLinear")) return i == 1;
  return rule != nullptr && KernelDef::Lists(rule->refuses, i);
}

QuantizedLinks::QuantizedLinks(Graph& graph) {
  for (const auto& node : graph.nodes()) {
    if (!node->Is("DequantizeLinear") || node->input(kQuantizedFrom) != nullptr ||
        node->input(0) == nullptr)
      continue;
    const Node* quantize = node->input(0)->producer();
    const bool is_pair = quantize != nullptr && quantize->output(0) == node->input(0) &&
                         (quantize->Is("QuantizeLinear") || quantize->Is("DynamicQuantizeLinear"));
    if (!is_pair || quantize->graph() != &graph || !MayCarryGradient(quantize->input(0)->type()))
      continue;
    linked_.emplace_back(node.get(), static_cast<int>(node->inputs().size()));
    node->SetInput(kQuantizedFrom, quantize->input(0));
  }
}

QuantizedLinks::~QuantizedLinks() {
  for (const auto& [node, inputs] : linked_) node->TruncateInputs(inputs);
}

std::vector<Value*> AllInputs(const Node& node) {
  std::vector<Value*> out = node.inputs();
  const std::vector<Value*> implicit = Graph::ImplicitInputs(node);
  out.insert(out.end(), implicit.begin(), implicit.end());
  return out;
}

namespace {

[[maybe_unused]] bool IsTopological(const Graph& graph) {
  std::unordered_set<const Node*> before;
  for (const auto& node : graph.nodes()) {
    for (const Value* input : AllInputs(*node)) {
      if (input == nullptr || input->graph() != &graph || input->producer() == nullptr) continue;
      if (!before.count(input->producer())) return false;
    }
    before.insert(node.get());
  }
  return true;
}

}  // namespace

GradientPath::GradientPath(const Graph& graph, const std::vector<Value*>& xs,
                           const std::vector<Value*>& ys,
                           const std::unordered_set<const Value*>& stop, Inputs inputs)
    : inputs_(inputs), stop_(stop) {
  assert(IsTopological(graph));
  SweepForward(graph, xs);
  SweepBackward(graph, ys);
}

bool GradientPath::Carries(const GradientRule* rule, const Node& node, int i) const {
  return InputCarries(rule, node, i) && (inputs_ == Inputs::kAll || !IsSetting(rule, node, i));
}

bool GradientPath::Passes(const Node& node) const {
  const GradientRule* rule = FindGradientRule(node);
  const std::vector<Value*> inputs = AllInputs(node);
  for (size_t i = 0; i < inputs.size(); ++i) {
    if (inputs[i] == nullptr || !reached_.count(inputs[i])) continue;
    const bool explicit_input = i < node.inputs().size();
    if (explicit_input ? Carries(rule, node, static_cast<int>(i))
                       : MayCarryGradient(inputs[i]->type()))
      return true;
  }
  return false;
}

void GradientPath::SweepForward(const Graph& graph, const std::vector<Value*>& xs) {
  for (const Value* x : xs) reached_.insert(x);
  for (const auto& node : graph.nodes()) {
    if (!Passes(*node)) continue;
    for (const Value* output : node->outputs()) {
      if (output != nullptr && MayCarryGradient(output->type()) && !stop_.count(output))
        reached_.insert(output);
    }
  }
}

void GradientPath::SweepBackward(const Graph& graph, const std::vector<Value*>& ys) {
  std::unordered_set<const Value*> leads;  // to ys
  for (const Value* y : ys) {
    if (reached_.count(y)) leads.insert(y);
  }
  for (auto it = graph.nodes().rbegin(); it != graph.nodes().rend(); ++it) {
    Node& node = **it;
    bool on_path = false;
    for (const Value* output : node.outputs())
      on_path |= output != nullptr && leads.count(output) > 0;
    if (!on_path || !Passes(node)) continue;
    nodes_.push_back(&node);
    const GradientRule* rule = FindGradientRule(node);
    const std::vector<Value*> inputs = AllInputs(node);
    for (size_t i = 0; i < inputs.size(); ++i) {
      if (inputs[i] == nullptr || !reached_.count(inputs[i]) ||
          !MayCarryGradient(inputs[i]->type()))
        continue;
      if (i < node.inputs().size() && !Carries(rule, node, static_cast<int>(i))) continue;
      leads.insert(inputs[i]);
    }
  }
  std::reverse(nodes_.begin(), nodes_.end());
  values_ = std::move(leads);
}

}  // namespace caesura::gradient
