// SPDX-License-Identifier: Apache-2.0
#include "core/plan/subgraph_partition.h"

#include <algorithm>

#include "core/base/log.h"
#include "core/base/status_macros.h"
#include "core/graph/convex_groups.h"
#include "core/graph/extract_subgraph.h"
#include "core/graph/graph_edit.h"
#include "core/graph/op_schema.h"
#include "core/graph/op_def.h"
#include "core/providers/compiled_subgraph.h"

namespace caesura {
namespace {

bool IsNumbers(const Value* value) {
  if (value == nullptr) return true;
  const ValueType& type = value->type();
  return type.is_tensor() && type.dtype != DType::kUndefined && type.dtype != DType::kString;
}

bool IsOffered(const Node& node, const std::string& provider) {
  if (node.phase() != Phase::kForward || !node.Subgraphs().empty()) return false;
  if (IsYield(node) || (!node.provider().empty() && node.provider() != provider)) return false;
  const OpSchema* schema = FindOpSchema(node);
  if (schema != nullptr && schema->determinism == OpSchema::Determinism::kNonDeterministic)
    return false;
  return std::all_of(node.inputs().begin(), node.inputs().end(), IsNumbers) &&
         std::all_of(node.outputs().begin(), node.outputs().end(), IsNumbers);
}

class SubgraphPartition : public Pass {
 public:
  SubgraphPartition(const ProviderList& providers, std::unordered_set<std::string> changing)
      : providers_(providers), changing_(std::move(changing)) {}
  const char* name() const override { return kSubgraphPartitionPass; }

  Result<bool> Run(Model& model) override {
    bool changed = false;
    for (const auto& provider : providers_) {
      if (provider->compiler() == nullptr) continue;
      ASSIGN_OR_RETURN(const bool took, Offer(*model.graph, *provider));
      changed |= took;
    }
    return changed;
  }

 private:
  Result<bool> Offer(Graph& graph, const ExecutionProvider& provider) {
    RETURN_IF_ERROR(graph.SortTopologically());
    CapabilityRequest request{graph, {}, changing_};
    for (const auto& node : graph.nodes())
      request.offered.push_back(IsOffered(*node, provider.name()));
    auto answer = provider.compiler()->Capability(request);
    if (!answer.ok() && answer.status().code() == StatusCode::kOutOfMemory) return answer.status();
    if (!answer.ok()) {
      return ProviderFailure(provider.name() +
                             " failed to say what it takes: " + answer.status().message());
    }
    std::vector<int> groups = *std::move(answer);
    groups.resize(graph.nodes().size(), 0);
    for (size_t i = 0; i < groups.size(); ++i) {
      if (!request.offered[i]) groups[i] = 0;
    }
    std::vector<std::vector<Node*>> parts = Parts(graph, groups, provider.compiler()->min_nodes());
    if (parts.empty()) return false;
    const std::unordered_set<const Value*> exported = Exported(graph);
    {
      GraphEdit edit(graph);
      for (const auto& part : parts) Replace(graph, edit, part, exported, provider.name());
    }
    graph.RemoveUnusedValues();
    RETURN_IF_ERROR(graph.SortTopologically());
    size_t taken = 0;
    for (const std::vector<Node*>& part : parts) taken += part.size();
    LogVerbose(1, provider.name() + " takes " + std::to_string(taken) + " of " +
                      std::to_string(groups.size()) + " nodes in " + std::to_string(parts.size()) +
                      " part(s)");
    return true;
  }

  static std::vector<std::vector<Node*>> Parts(const Graph& graph, const std::vector<int>& groups,
                                               int min_nodes) {
    ConvexGroups convex(graph);
    const int count = static_cast<int>(groups.size());
    for (int from = 0; from < count; ++from) {
      if (groups[from] == 0) continue;
      for (int to : convex.waiting(from)) {
        if (groups[to] == groups[from]) convex.Join(from, to);
      }
    }
    std::vector<std::vector<Node*>> parts;
    for (int i = 0; i < count; ++i) {
      const std::vector<int>& members = convex.members(i);
      const bool first = members.front() == i;
      if (groups[i] == 0 || !first || static_cast<int>(members.size()) < min_nodes) continue;
      std::vector<Node*>& part = parts.emplace_back();
      for (int member : members) part.push_back(graph.nodes()[member].get());
    }
    return parts;
  }

  void Replace(Graph& graph, GraphEdit& edit, const std::vector<Node*>& part,
               const std::unordered_set<const Value*>& exported,
               const std::string& provider) const {
    const std::unordered_set<const Node*> inside(part.begin(), part.end());
    std::vector<Value*> outputs;
    for (const Node* node : part) {
      for (Value* value : node->outputs()) {
        if (value == nullptr) continue;
        const bool read =
            std::any_of(value->uses().begin(), value->uses().end(),
                        [&](const Value::Use& use) { return inside.count(use.node) == 0; });
        if (read || exported.count(value)) outputs.push_back(value);
      }
    }
    const std::vector<const Node*> nodes(part.begin(), part.end());
    ExtractedSubgraph extracted = ExtractSubgraph(graph, nodes, outputs, changing_);
    for (Node* node : part) {
      graph.ReleaseOutputs(node);
      edit.Remove(*node);
    }
    AttributeMap attributes;
    attributes[kCompiledBody] = std::shared_ptr<Graph>(extracted.graph->Clone(&graph));
    Node* compiled =
        edit.InsertBefore(*part.back(), {kCompiledSubgraphOp, extracted.inputs, std::move(outputs),
                                         std::move(attributes), kCaesuraDomain});
    compiled->set_provider(provider);
    compiled->set_source(part.front()->source());
  }

  // Values that are outputs of a graph: of this one, or of a body in it.
  static std::unordered_set<const Value*> Exported(const Graph& graph) {
    std::unordered_set<const Value*> out(graph.outputs().begin(), graph.outputs().end());
    for (const auto& node : graph.nodes()) {
      for (const Value* value : Graph::ImplicitInputs(*node)) out.insert(value);
    }
    return out;
  }

  ProviderList providers_;
  std::unordered_set<std::string> changing_;
};

}  // namespace

std::shared_ptr<Pass> MakeSubgraphPartitionPass(const ProviderList& providers,
                                                std::unordered_set<std::string> changing) {
  return std::make_shared<SubgraphPartition>(providers, std::move(changing));
}

bool AnyCompiles(const ProviderList& providers) {
  return std::any_of(providers.begin(), providers.end(),
                     [](const auto& provider) { return provider->compiler() != nullptr; });
}

}  // namespace caesura
