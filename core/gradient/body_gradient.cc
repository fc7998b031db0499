// SPDX-License-Identifier: Apache-2.0
#include "core/gradient/body_gradient.h"

#include "core/base/status_macros.h"
#include "core/gradient/gradient_builder.h"
#include "core/gradient/gradient_context.h"
#include "core/gradient/gradient_path.h"

namespace caesura::gradient {
namespace {

// Copies nodes of `from` to `target`, which reads `bindings` in the place of values.
class Copier {
 public:
  Copier(const Graph& from, Graph& target, ValueMap bindings)
      : from_(from), target_(target), bindings_(std::move(bindings)) {}

  Value* Counterpart(Value* value) {
    if (value == nullptr || value->graph() != &from_) return value;
    Value*& copy = bindings_[value];
    if (copy == nullptr && from_.Initializer(value) != nullptr) {
      copy = target_.AddInitializer(target_.UniqueName(value->name()), *from_.Initializer(value));
    }
    return copy;
  }

  // Nodes come in order.
  Node* Copy(const Node& node) {
    std::vector<Value*> inputs, outputs;
    for (Value* input : AllInputs(node)) inputs.push_back(Counterpart(input));
    inputs.resize(node.inputs().size());  // implicit inputs were only to be bound
    for (Value* output : node.outputs()) {
      outputs.push_back(output == nullptr
                            ? nullptr
                            : target_.AddValue(target_.UniqueName(output->name()), output->type()));
      if (output != nullptr) bindings_[output] = outputs.back();
    }
    Node* copy = target_.CloneNode(node, std::move(inputs), std::move(outputs),
                                   target_.UniqueName(node.name()), &bindings_);
    copy->set_phase(Phase::kBackward);
    return copy;
  }

 private:
  const Graph& from_;
  Graph& target_;
  ValueMap bindings_;
};

}  // namespace

std::vector<Value*> CopyBody(const Graph& body, NodeWriter& writer, ValueMap bindings) {
  Copier copier(body, writer.graph(), std::move(bindings));
  for (const auto& node : body.nodes()) writer.Adopt(copier.Copy(*node));
  std::vector<Value*> results;
  for (Value* output : body.outputs()) results.push_back(copier.Counterpart(output));
  return results;
}

Graph& BodyOf(const GradientContext& g, const char* attribute) {
  return **g.node().FindAttr<std::shared_ptr<Graph>>(attribute);
}

std::vector<Value*> NeededCaptures(const GradientContext& g) {
  std::vector<Value*> out;
  for (Value* value : Graph::ImplicitInputs(g.node())) {
    if (g.NeedsValue(value)) out.push_back(value);
  }
  return out;
}

Value* AddOutput(GradientContext& g, size_t index, const std::string& stem, ValueType type) {
  Graph& graph = g.writer().graph();
  Value* value = graph.AddValue(graph.UniqueName(g.node().name() + "/" + stem), std::move(type));
  g.mutable_node().SetOutput(static_cast<int>(index), value);
  return value;
}

void AddCopyAsOutput(Graph& body, Value* value) {
  Node* node = body.AddOp("Identity", {value}, {}, "", 1, value->name() + "/kept");
  node->output(0)->set_type(value->type());
  body.AddOutput(node->output(0));
}

Result<BodyGradient> BodyGradient::Build(Graph& body, const std::vector<Value*>& ys,
                                         const std::vector<Value*>& xs,
                                         const std::string& name_prefix) {
  BodyGradient out;
  out.body_ = &body;
  out.xs_ = xs;
  GradientOptions options;
  options.xs = xs;
  options.name_prefix = name_prefix;
  for (Value* y : ys) {
    out.seeds_.push_back(
        body.AddValue(body.UniqueName(name_prefix + y->name() + "/dy"), y->type()));
    options.ys.push_back({y, out.seeds_.back()});
  }
  ASSIGN_OR_RETURN(GradientGraph gradient, BuildGradient(body, options));
  out.dxs_ = std::move(gradient.dxs);
  out.nodes_ = std::move(gradient.nodes);
  out.unreachable_.insert(gradient.unreachable.begin(), gradient.unreachable.end());
  return out;
}

std::unordered_set<const Node*> BodyGradient::NodesBehind(const std::vector<Value*>& wanted) const {
  const std::unordered_set<const Node*> ours(nodes_.begin(), nodes_.end());
  std::unordered_set<const Node*> out;
  std::vector<const Value*> open(wanted.begin(), wanted.end());
  while (!open.empty()) {
    const Value* value = open.back();
    open.pop_back();
    const Node* node = value == nullptr ? nullptr : value->producer();
    if (node == nullptr || !ours.count(node) || !out.insert(node).second) continue;
    for (const Value* input : AllInputs(*node)) open.push_back(input);
  }
  return out;
}

std::vector<Value*> BodyGradient::Saved(const std::vector<Value*>& wanted) const {
  const std::unordered_set<const Node*> behind = NodesBehind(wanted);
  std::unordered_set<const Value*> seen(seeds_.begin(), seeds_.end());
  std::vector<Value*> out;
  auto read = [&](Value* value) {
    if (value == nullptr || value->graph() != body_ || behind.count(value->producer())) return;
    if (body_->Initializer(value) == nullptr && seen.insert(value).second) out.push_back(value);
  };
  for (Node* node : nodes_) {
    if (!behind.count(node)) continue;
    for (Value* input : AllInputs(*node)) read(input);
  }
  for (Value* value : wanted) read(value);
  return out;
}

std::vector<Value*> BodyGradient::CopyTo(Graph& target, const std::vector<Value*>& wanted,
                                         ValueMap bindings) const {
  Copier copier(*body_, target, std::move(bindings));
  const std::unordered_set<const Node*> behind = NodesBehind(wanted);
  for (const Node* node : nodes_) {
    if (behind.count(node)) copier.Copy(*node);
  }
  std::vector<Value*> results;
  for (Value* value : wanted) {
    Node* identity =
        target.AddOp("Identity", {copier.Counterpart(value)}, {}, "", 1, value->name() + "/out");
    identity->set_phase(Phase::kBackward);
    identity->output(0)->set_type(value->type());
    results.push_back(identity->output(0));
  }
  return results;
}

void BodyGradient::RemoveFromBody() {
  body_->RemoveNodes({nodes_.begin(), nodes_.end()});
  body_->RemoveUnusedValues();
  nodes_.clear();
}

}  // namespace caesura::gradient
