// SPDX-License-Identifier: Apache-2.0
#include "graph_transforms/simplify/constant_nodes.h"

#include <optional>

#include "graph_transforms/replacements.h"

namespace caesura {
namespace {

std::optional<Tensor> ConstantOf(const Node& node) {
  if (const auto* tensor = node.FindAttr<Tensor>("value")) return *tensor;
  if (const auto* one = node.FindAttr<int64_t>("value_int")) return Tensor::Scalar<int64_t>(*one);
  if (const auto* one = node.FindAttr<float>("value_float")) return Tensor::Scalar<float>(*one);
  if (const auto* one = node.FindAttr<std::string>("value_string"))
    return Tensor::Scalar<std::string>(*one);
  auto list = [](const auto* values) {
    using T = typename std::decay_t<decltype(*values)>::value_type;
    return Tensor::Of<T>(Shape{static_cast<int64_t>(values->size())}, *values);
  };
  if (const auto* many = node.FindAttr<std::vector<int64_t>>("value_ints")) return list(many);
  if (const auto* many = node.FindAttr<std::vector<float>>("value_floats")) return list(many);
  if (const auto* many = node.FindAttr<std::vector<std::string>>("value_strings"))
    return list(many);
  return std::nullopt;
}

bool TakeConstants(Graph& graph) {
  bool changed = false;
  Replacements replacements;
  std::unordered_set<const Node*> gone;
  for (const auto& node : graph.nodes()) {
    for (Graph* body : node->Subgraphs()) changed |= TakeConstants(*body);
    if (!node->Is("Constant")) continue;
    const std::optional<Tensor> constant = ConstantOf(*node);
    if (!constant) continue;  // a sparse one stays
    // An output of the model keeps its name, and so the node that makes it; outputs of bodies go by
    // their places.
    Value* output = node->output(0);
    const bool exported = graph.parent() == nullptr && graph.IsGraphOutput(output);
    if (exported && output->uses().empty()) continue;
    Value* value = graph.AddInitializer(output->name() + "_value", *constant);
    if (exported) {
      for (const Value::Use& use : std::vector<Value::Use>(output->uses()))
        use.node->SetInput(use.index, value);
      changed = true;
    } else {
      replacements.Replace(output, value);
      gone.insert(node.get());
    }
  }
  replacements.Finish(graph);
  graph.RemoveNodes(gone);
  return changed || !gone.empty();
}

class ConstantNodes : public Pass {
 public:
  const char* name() const override { return "constant_nodes"; }
  Result<bool> Run(Model& model) override { return TakeConstants(*model.graph); }
};

}  // namespace

std::shared_ptr<Pass> MakeConstantNodesPass() { return std::make_shared<ConstantNodes>(); }

}  // namespace caesura
