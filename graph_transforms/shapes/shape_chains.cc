// SPDX-License-Identifier: Apache-2.0
#include "graph_transforms/shapes/shape_chains.h"

#include <algorithm>
#include <set>

#include "core/graph/op_def.h"
#include "core/kernels/kernel_registry.h"

namespace caesura {
namespace {

std::unordered_map<const Value*, int> Given(const Graph& graph, const ProviderList& providers,
                                            const std::unordered_set<std::string>& device_inputs) {
  std::unordered_map<const Value*, int> given;
  if (DevicesOf(providers).size() < 2) return given;
  for (const Value* input : graph.inputs()) {
    if (device_inputs.count(input->name())) given[input] = 1;
  }
  return given;
}

}  // namespace

std::string WhyNoShape(const Value* value) {
  const ValueType& type = value->type();
  if (!type.is_tensor()) return "is no tensor, or of an unknown type";
  static const DTypeSet kShapeTypes = {DType::kInt64,  DType::kInt32,  DType::kInt16,
                                       DType::kInt8,   DType::kUInt64, DType::kUInt32,
                                       DType::kUInt16, DType::kUInt8,  DType::kBool};
  if (!kShapeTypes.Contains(type.dtype)) return std::string("holds ") + DTypeName(type.dtype);
  if (!type.shape) return "is of an unknown rank";
  int64_t elements = 1;
  bool known = true;
  for (const Dim& dim : *type.shape) {
    known &= dim.known();
    if (dim.known() && __builtin_mul_overflow(elements, dim.value, &elements))
      elements = kMaxShapeElements + 1;
  }
  if (known ? elements <= kMaxShapeElements : type.shape->size() <= 1) return {};
  return "is " + type.ToString() + ", which may be more than " + std::to_string(kMaxShapeElements) +
         " elements";
}

ShapeChains::ShapeChains(Graph& graph, const ProviderList& providers,
                         const std::unordered_set<std::string>& device_inputs,
                         const std::unordered_set<std::string>& keep)
    : placement_(graph, providers, Given(graph, providers, device_inputs)) {
  for (const auto& provider : providers) {
    if (host_ == nullptr && provider->device().is_host()) host_ = provider.get();
  }
  Walk(graph);
  for (size_t i = 0; i < graph.outputs().size(); ++i) {
    Value* output = graph.outputs()[i];
    // Where other results go is for those to say who plan.
    reads_[output].push_back(
        {nullptr, static_cast<int>(i), &graph, !WhyNoShape(output).empty(), true});
  }
  for (const Node* node : nodes_) why_not_movable_[node] = Examine(*node, keep);
}

const std::vector<ValueRead>& ShapeChains::reads(const Value* value) const {
  static const std::vector<ValueRead> kNone;
  auto found = reads_.find(value);
  return found == reads_.end() ? kNone : found->second;
}

bool ShapeChains::ReadsOnHost(const Node& node, int i) const {
  return placement_.InputDevice(node, *provider_of_.at(&node), i) == 0;
}

void ShapeChains::Walk(Graph& graph) {
  graphs_.push_back(&graph);
  std::vector<Value*> values(graph.inputs());
  for (const auto& node : graph.nodes()) {
    nodes_.push_back(node.get());
    const ExecutionProvider* provider = placement_.ProviderOf(*node);
    provider_of_[node.get()] = provider == nullptr ? host_ : provider;
    AddReads(*node);
    if (RunsBodies(*node)) AddBodies(*node);
    for (Value* output : node->outputs()) {
      if (output != nullptr) values.push_back(output);
    }
  }
  values_[&graph] = std::move(values);
}

void ShapeChains::AddReads(Node& node) {
  for (int i = 0; i < static_cast<int>(node.inputs().size()); ++i) {
    if (node.input(i) == nullptr) continue;
    const int device = placement_.InputDevice(node, *provider_of_.at(&node), i);
    // A loop wants the start of what it carries where it carries it; that is for body_results() to
    // say.
    const bool starts = node.Is("Loop") && i >= 2;
    reads_[node.input(i)].push_back(
        {&node, i, node.graph(), starts || device == Placement::kAnywhere, device == 0});
  }
}

void ShapeChains::AddBodies(Node& node) {
  const std::vector<Graph*> bodies = node.Subgraphs();
  for (Graph* body : bodies) Walk(*body);
  auto hand_on = [&](int index, Graph* body, bool handed) {
    reads_[body->outputs()[index]].push_back({nullptr, index, body, handed, true});
  };
  for (Graph* body : bodies) {
    const int carried = static_cast<int>(node.inputs().size()) - 2;
    for (int i = 0; i < static_cast<int>(body->outputs().size()); ++i) {
      hand_on(i, body, node.Is("If") || (node.Is("Loop") && i >= 1 && i <= carried));
    }
  }
  if (node.Is("If")) {
    for (size_t i = 0; i < node.outputs().size(); ++i) {
      BodyResult on{&node, {}, {}};
      if (node.outputs()[i] != nullptr) on.results.push_back(node.outputs()[i]);
      for (Graph* body : bodies) on.sources.emplace_back(body->outputs()[i], body);
      body_results_.push_back(std::move(on));
    }
  }
  if (!node.Is("Loop")) return;
  for (size_t i = 2; i < node.inputs().size(); ++i) {
    BodyResult on{&node, {bodies[0]->inputs()[i]}, {{bodies[0]->outputs()[i - 1], bodies[0]}}};
    if (node.inputs()[i] != nullptr) on.sources.emplace_back(node.inputs()[i], node.graph());
    if (node.output(static_cast<int>(i) - 2) != nullptr)
      on.results.push_back(node.outputs()[i - 2]);
    body_results_.push_back(std::move(on));
  }
}

std::vector<CopyCount> ShapeChains::Copies() const {
  std::unordered_map<const Graph*, CopyCount> counts;
  auto add = [&](const Graph* graph, bool from_host, bool to_host) {
    counts[graph].to_host += to_host && !from_host;
    counts[graph].to_device += from_host && !to_host;
  };
  for (const Graph* graph : graphs_) {
    for (const Value* value : values_.at(graph)) {
      std::set<std::pair<const Graph*, bool>> wanted;  // each graph copies for its own nodes, once
      for (const ValueRead& read : reads(value)) {
        if (read.anywhere || IsConstant(value) || !wanted.emplace(read.graph, read.on_host).second)
          continue;
        add(read.graph, IsOnHost(value), read.on_host);
      }
    }
  }
  for (const BodyResult& on : body_results_) {
    for (const auto& [source, graph] : on.sources) {
      if (!IsConstant(source) && !on.results.empty())
        add(graph, IsOnHost(source), IsOnHost(on.results.front()));
    }
  }
  std::vector<CopyCount> out;
  for (const Graph* graph : graphs_) out.push_back(counts[graph]);
  return out;
}

std::string ShapeChains::Examine(const Node& node,
                                 const std::unordered_set<std::string>& keep) const {
  const ExecutionProvider& provider = *provider_of_.at(&node);
  if (provider.device().is_host()) return "runs on the host anyway";
  if (IsYield(node)) return "is a yield";
  if (!node.provider().empty()) return "is pinned to " + node.provider();
  if (keep.count(node.name())) return "is kept where it is, as asked";
  if (node.phase() == Phase::kOptimizer) return "belongs to the optimizer";
  if (!node.Subgraphs().empty()) return "has a body";
  for (const Value* output : node.outputs()) {
    const std::string why = output == nullptr ? "" : WhyNoShape(output);
    if (!why.empty()) return "also makes '" + output->name() + "', which " + why;
  }
  for (const Value* input : node.inputs()) {
    const std::string why = input == nullptr ? "" : WhyNoShape(input);
    if (!why.empty()) return "reads '" + input->name() + "', which " + why;
  }
  if (host_ == nullptr || host_->kernels().Find(node).empty()) return "has no kernel on the host";
  for (const KernelDef* def : provider.kernels().Find(node)) {
    if (!def->deterministic) return "is not the same twice";
    for (const Alias& alias : def->aliases) {
      if (alias.kind == Alias::Kind::kInPlace) return "updates in place";
    }
  }
  return {};
}

}  // namespace caesura
