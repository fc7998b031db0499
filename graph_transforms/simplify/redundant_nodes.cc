// SPDX-License-Identifier: Apache-2.0
#include "graph_transforms/simplify/redundant_nodes.h"

#include "graph_transforms/replacements.h"
#include "graph_transforms/same_dims.h"

namespace caesura {
namespace {

bool IsIdentityPermutation(const Node& node) {
  const auto* perm = node.FindAttr<std::vector<int64_t>>("perm");
  if (perm == nullptr) return false;
  for (size_t i = 0; i < perm->size(); ++i) {
    if ((*perm)[i] != static_cast<int64_t>(i)) return false;
  }
  return true;
}

bool HandsOnItsInput(const Node& node) {
  const Value* input = node.input(0);
  if (input == nullptr || node.output(0) == nullptr) return false;
  if (node.Is("Identity")) return true;
  if (node.Is("Cast") || node.Is("CastLike")) {
    return input->type().is_tensor() && input->dtype() != DType::kUndefined &&
           input->dtype() == node.output(0)->dtype();
  }
  if (node.Is("SumTo", kCaesuraDomain)) {
    const auto &from = input->type().shape, &to = node.output(0)->type().shape;
    return from && to && SameDims(*from, *to) && input->dtype() == node.output(0)->dtype();
  }
  return node.Is("Transpose") && IsIdentityPermutation(node);
}

// The only input of a Concat that is not known to be empty, as the part of a head that rotary
// embeddings leave alone may be; null where there are others.
Value* OnlyPart(const Node& node) {
  Value* only = nullptr;
  for (Value* input : node.inputs()) {
    const std::optional<Shape> shape =
        input == nullptr ? std::nullopt : input->type().ConcreteShape();
    if (!shape) return nullptr;
    if (shape->elements() == 0) continue;
    if (only != nullptr) return nullptr;
    only = input;
  }
  return only;
}

// The input that a node hands on as it is, or null.
Value* PassedOn(const Node& node) {
  return node.Is("Concat") && node.output(0) != nullptr ? OnlyPart(node)
         : HandsOnItsInput(node)                        ? node.input(0)
                                                        : nullptr;
}

bool RemoveRedundantNodes(Graph& graph) {
  bool changed = false;
  Replacements replacements;
  std::unordered_set<const Node*> gone;
  for (const auto& node : graph.nodes()) {
    for (Graph* body : node->Subgraphs()) changed |= RemoveRedundantNodes(*body);
    Value* input = PassedOn(*node);
    if (input == nullptr) continue;
    Value* output = node->output(0);
    // A graph output keeps its name, so the node that makes it stays; so does one that exports an
    // outer value.
    if (graph.IsGraphOutput(output)) continue;
    if (!input->type().is_tensor() && output->type().is_tensor())
      continue;  // an optional is opened here
    replacements.Replace(output, input);
    gone.insert(node.get());
  }
  replacements.Finish(graph);
  graph.RemoveNodes(gone);
  return changed || !gone.empty();
}

class RedundantNodes : public Pass {
 public:
  const char* name() const override { return "redundant_nodes"; }
  Result<bool> Run(Model& model) override { return RemoveRedundantNodes(*model.graph); }
};

}  // namespace

std::shared_ptr<Pass> MakeRedundantNodesPass() { return std::make_shared<RedundantNodes>(); }

}  // namespace caesura
