// SPDX-License-Identifier: Apache-2.0
#include "core/graph/graph.h"

#include <algorithm>
#include <cassert>
#include <functional>
#include <queue>
#include <unordered_set>
#include <utility>

#include "core/graph/op_schema.h"

namespace caesura {

Value* Graph::AddValue(const std::string& name, ValueType type) {
  const bool taken = name.empty() || Resolve(name) != nullptr;
  auto value = std::make_unique<Value>();
  value->name_ = taken ? UniqueName(name.empty() ? "value" : name) : name;
  value->type_ = std::move(type);
  value->graph_ = this;
  Value* out = value.get();
  values_.emplace(out->name_, std::move(value));
  value_order_.push_back(out);
  return out;
}

Value* Graph::FindValue(const std::string& name) const {
  auto it = values_.find(name);
  return it == values_.end() ? nullptr : it->second.get();
}

Value* Graph::Resolve(const std::string& name) const {
  for (const Graph* graph = this; graph != nullptr; graph = graph->parent_) {
    if (Value* value = graph->FindValue(name)) return value;
  }
  return nullptr;
}

std::string Graph::UniqueName(const std::string& stem) {
  std::string name = stem;
  while (Resolve(name) != nullptr || node_names_.count(name)) {
    name = stem + "_" + std::to_string(++name_counters_[stem]);
  }
  return name;
}

std::vector<Value*> Graph::Values() const { return value_order_; }

Node* Graph::AddNode(const std::string& op_type, std::vector<Value*> inputs,
                     std::vector<Value*> outputs, AttributeMap attributes,
                     const std::string& domain, const std::string& name) {
  auto node = std::make_unique<Node>();
  node->op_type_ = op_type;
  node->domain_ = domain;
  const std::string stem = name.empty() ? op_type : name;
  node->name_ = node_names_.count(stem) || name.empty() ? UniqueName(stem) : stem;
  node->graph_ = this;
  node->outputs_ = std::move(outputs);
  node->attributes_ = std::move(attributes);
  node_names_[node->name_] = node.get();
  for (size_t i = 0; i < inputs.size(); ++i) node->SetInput(static_cast<int>(i), inputs[i]);
  for (Value* output : node->outputs_) {
    if (output != nullptr) output->producer_ = node.get();
  }
  nodes_.push_back(std::move(node));
  return nodes_.back().get();
}

Node* Graph::AddOp(const std::string& op_type, std::vector<Value*> inputs, AttributeMap attributes,
                   const std::string& domain, int output_count, const std::string& stem) {
  std::vector<Value*> outputs;
  for (int i = 0; i < output_count; ++i) {
    outputs.push_back(AddValue(UniqueName(stem.empty() ? op_type + "_out" : stem)));
  }
  return AddNode(op_type, std::move(inputs), std::move(outputs), std::move(attributes), domain);
}

Node* Graph::AddFor(const Node& origin, NodeSpec spec) {
  Node* node = AddNode(spec.op_type, std::move(spec.inputs), std::move(spec.outputs),
                       std::move(spec.attributes), spec.domain, spec.name);
  node->since_version_ = SinceVersion(spec.op_type, spec.domain);
  node->metadata_ = origin.metadata_;
  return node;
}

Node* Graph::InsertBefore(const Node& origin, NodeSpec spec) {
  Node* node = AddFor(origin, std::move(spec));
  MoveTailBefore(nodes_.size() - 1, &origin);
  return node;
}

Node* Graph::CloneNode(const Node& node, std::vector<Value*> inputs, std::vector<Value*> outputs,
                       const std::string& name, std::unordered_map<const Value*, Value*>* mapping) {
  AttributeMap attributes = node.attributes_;
  for (auto& [key, attribute] : attributes) {
    if (auto* one = std::get_if<std::shared_ptr<Graph>>(&attribute))
      *one = (*one)->Clone(this, mapping);
    if (auto* many = std::get_if<std::vector<std::shared_ptr<Graph>>>(&attribute)) {
      for (auto& body : *many) body = body->Clone(this, mapping);
    }
  }
  Node* copy = AddNode(node.op_type_, std::move(inputs), std::move(outputs), std::move(attributes),
                       node.domain_, name.empty() ? node.name_ : name);
  copy->since_version_ = node.since_version_;
  copy->metadata_ = node.metadata_;
  return copy;
}

void Graph::RemoveNode(Node* node) { RemoveNodes({node}); }

void Graph::RemoveNodes(const std::unordered_set<const Node*>& nodes) {
  std::unordered_set<const Value*> gone;
  for (const auto& node : nodes_) {
    if (!nodes.count(node.get())) continue;
    node->TruncateInputs(0);
    for (Graph* body : node->Subgraphs()) {
      std::unordered_set<const Node*> inner;
      for (const auto& n : body->nodes_) inner.insert(n.get());
      body->ClearOutputs();
      body->RemoveNodes(inner);
    }
    for (Value* output : node->outputs_) {
      if (output != nullptr) gone.insert(output);
    }
    node_names_.erase(node->name_);
  }
  assert(std::all_of(gone.begin(), gone.end(), [](auto* v) { return v->uses().empty(); }));
  assert(std::none_of(outputs_.begin(), outputs_.end(), [&](auto* v) { return gone.count(v); }));
  value_order_.erase(std::remove_if(value_order_.begin(), value_order_.end(),
                                    [&](Value* v) { return gone.count(v); }),
                     value_order_.end());
  for (const Value* value : gone) {
    initializers_.erase(value);
    values_.erase(std::string(value->name()));
  }
  nodes_.erase(std::remove_if(nodes_.begin(), nodes_.end(),
                              [&](const auto& n) { return nodes.count(n.get()); }),
               nodes_.end());
}

std::vector<Value*> Graph::ReleaseOutputs(Node* node) {
  for (Value* output : node->outputs_) {
    if (output != nullptr) output->producer_ = nullptr;
  }
  return std::exchange(node->outputs_, {});
}

void Graph::MoveTailBefore(size_t first, const Node* before) {
  auto at =
      std::find_if(nodes_.begin(), nodes_.end(), [&](const auto& n) { return n.get() == before; });
  std::rotate(at, nodes_.begin() + static_cast<std::ptrdiff_t>(first), nodes_.end());
}

void Graph::AddUse(Value* value, Node* node, int index) { value->uses_.push_back({node, index}); }

void Graph::RemoveUse(Value* value, const Node* node, int index) {
  auto& uses = value->uses_;
  auto it = std::find_if(uses.begin(), uses.end(),
                         [&](const Value::Use& u) { return u.node == node && u.index == index; });
  if (it != uses.end()) {
    *it = uses.back();
    uses.pop_back();
  }
}

Status Graph::SortTopologically() {
  // A node waits for the producers, in this graph, of its explicit and implicit inputs. Ready nodes
  // leave in list order, so an already sorted list stays as it is.
  std::unordered_map<const Node*, int> position;
  for (size_t i = 0; i < nodes_.size(); ++i) position[nodes_[i].get()] = static_cast<int>(i);
  std::vector<std::vector<int>> dependents(nodes_.size());
  std::vector<int> waiting(nodes_.size(), 0);
  for (size_t i = 0; i < nodes_.size(); ++i) {
    std::vector<Value*> reads = nodes_[i]->inputs();
    const std::vector<Value*> implicit = ImplicitInputs(*nodes_[i]);
    reads.insert(reads.end(), implicit.begin(), implicit.end());
    for (const Value* read : reads) {
      if (read == nullptr || read->producer() == nullptr || read->graph() != this) continue;
      dependents[position.at(read->producer())].push_back(static_cast<int>(i));
      ++waiting[i];
    }
  }
  std::priority_queue<int, std::vector<int>, std::greater<int>> ready;
  for (size_t i = 0; i < nodes_.size(); ++i) {
    if (waiting[i] == 0) ready.push(static_cast<int>(i));
  }
  std::vector<int> order;
  while (!ready.empty()) {
    const int i = ready.top();
    ready.pop();
    order.push_back(i);
    for (int dependent : dependents[i]) {
      if (--waiting[dependent] == 0) ready.push(dependent);
    }
  }
  if (order.size() != nodes_.size()) {
    for (size_t i = 0; i < nodes_.size(); ++i) {
      if (waiting[i] > 0)
        return InvalidModel(nodes_[i]->Label() + " is on or after a cycle of the graph");
    }
  }
  std::vector<std::unique_ptr<Node>> sorted;
  sorted.reserve(nodes_.size());
  for (int i : order) sorted.push_back(std::move(nodes_[i]));
  nodes_ = std::move(sorted);
  return {};
}

void Graph::Reorder(const std::vector<const Node*>& order) {
  assert(order.size() == nodes_.size());
  std::unordered_map<const Node*, std::unique_ptr<Node>> owners;
  for (auto& node : nodes_) {
    const Node* key = node.get();
    owners[key] = std::move(node);
  }
  nodes_.clear();
  for (const Node* node : order) {
    nodes_.push_back(std::move(owners.at(node)));
    assert(nodes_.back() != nullptr);
  }
}

void Graph::ReplaceAllUses(Value* from, Value* to) {
  const std::vector<Value::Use> uses = from->uses_;
  for (const Value::Use& use : uses) use.node->SetInput(use.index, to);
  // Graph outputs, here and in every body below (a body may export an outer value).
  std::function<void(Graph*)> replace_outputs = [&](Graph* graph) {
    for (Value*& output : graph->outputs_) {
      if (output == from) output = to;
    }
    for (const auto& node : graph->nodes_) {
      for (Graph* body : node->Subgraphs()) replace_outputs(body);
    }
  };
  replace_outputs(from->graph_);
}

std::vector<Value*> Graph::ImplicitInputs(const Node& node) {
  std::vector<Value*> out;
  std::unordered_set<const Value*> seen;
  const std::vector<Graph*> bodies = node.Subgraphs();
  if (bodies.empty()) return out;
  std::unordered_set<const Graph*> inside;
  auto consider = [&](Value* value) {
    if (value != nullptr && !inside.count(value->graph()) && seen.insert(value).second)
      out.push_back(value);
  };
  std::function<void(const Graph*)> visit = [&](const Graph* body) {
    inside.insert(body);
    for (const auto& inner : body->nodes_) {
      for (Value* input : inner->inputs()) consider(input);
      for (Graph* nested : inner->Subgraphs()) visit(nested);
    }
    for (Value* output : body->outputs_) consider(output);
  };
  for (const Graph* body : bodies) visit(body);
  return out;
}

Value* Graph::AddInput(const std::string& name, ValueType type) {
  Value* value = AddValue(name, std::move(type));
  inputs_.push_back(value);
  return value;
}

void Graph::RemoveInput(Value* value) {
  inputs_.erase(std::remove(inputs_.begin(), inputs_.end(), value), inputs_.end());
}

Value* Graph::AddInitializer(const std::string& name, Tensor tensor) {
  Value* value = AddValue(name, ValueType::Tensor(tensor.dtype(), tensor.shape()));
  initializers_[value] = std::move(tensor);
  return value;
}

const Tensor* Graph::Initializer(const Value* value) const {
  auto it = initializers_.find(value);
  return it == initializers_.end() ? nullptr : &it->second;
}

bool Graph::IsGraphInput(const Value* value) const {
  return std::find(inputs_.begin(), inputs_.end(), value) != inputs_.end();
}

bool Graph::IsGraphOutput(const Value* value) const {
  return std::find(outputs_.begin(), outputs_.end(), value) != outputs_.end();
}

void Graph::RemoveUnusedValues() {
  std::unordered_set<const Value*> kept(inputs_.begin(), inputs_.end());
  kept.insert(outputs_.begin(), outputs_.end());
  // A body below may export one of our values directly.
  for (const auto& node : nodes_) {
    for (const Value* value : ImplicitInputs(*node)) kept.insert(value);
  }
  std::vector<Value*> order;
  for (Value* value : value_order_) {
    if (value->producer_ != nullptr || !value->uses_.empty() || kept.count(value)) {
      order.push_back(value);
    } else {
      initializers_.erase(value);
      values_.erase(std::string(value->name()));
    }
  }
  value_order_ = std::move(order);
}

std::unique_ptr<Graph> Graph::Clone(Graph* parent,
                                    std::unordered_map<const Value*, Value*>* mapping) const {
  auto copy = std::make_unique<Graph>(name_, parent);
  if (parent == nullptr) copy->own_ops_ = own_ops();
  std::unordered_map<const Value*, Value*> local;
  std::unordered_map<const Value*, Value*>& map = mapping != nullptr ? *mapping : local;
  copy->name_counters_ = name_counters_;
  for (const Value* value : value_order_) {
    auto fresh = std::make_unique<Value>();
    fresh->name_ = value->name_;
    fresh->type_ = value->type_;
    fresh->graph_ = copy.get();
    map[value] = fresh.get();
    copy->value_order_.push_back(fresh.get());
    copy->values_.emplace(fresh->name_, std::move(fresh));
  }
  auto is_around = [parent](const Graph* graph) {
    const Graph* around = parent;
    while (around != nullptr && around != graph) around = around->parent_;
    return around != nullptr;
  };
  auto translate = [&](const Value* value) -> Value* {
    if (value == nullptr) return nullptr;
    auto it = map.find(value);
    if (it != map.end()) return it->second;
    return parent == nullptr || is_around(value->graph()) ? const_cast<Value*>(value)
                                                          : parent->Resolve(value->name());
  };
  for (const Value* value : inputs_) copy->inputs_.push_back(translate(value));
  for (const auto& [value, tensor] : initializers_) copy->initializers_[translate(value)] = tensor;
  for (const auto& node : nodes_) {
    std::vector<Value*> inputs, outputs;
    for (const Value* v : node->inputs_) inputs.push_back(translate(v));
    for (const Value* v : node->outputs_) outputs.push_back(translate(v));
    copy->CloneNode(*node, std::move(inputs), std::move(outputs), "", &map);
  }
  for (const Value* value : outputs_) copy->outputs_.push_back(translate(value));
  return copy;
}

Model Model::Clone() const {
  Model out(*this);
  out.graph = graph->Clone();
  return out;
}

}  // namespace caesura
