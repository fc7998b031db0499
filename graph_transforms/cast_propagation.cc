// SPDX-License-Identifier: Apache-2.0
#include "graph_transforms/cast_propagation.h"

namespace caesura {
namespace {

// The sum that the cast can be part of, or null.
Node* SumBehind(const Graph& graph, const Node& cast) {
  const Value* value = cast.input(0);
  if (!cast.Is("Cast") || value->producer() == nullptr || cast.output(0)->dtype() != DType::kFloat32) return nullptr;
  Node* sum = value->producer();
  const bool half = value->dtype() == DType::kFloat16 || value->dtype() == DType::kBFloat16;
  const bool alone = value->uses().size() == 1 && !graph.IsGraphOutput(value);
  return half && alone && sum->Is("SumTo", kCaesuraDomain) ? sum : nullptr;
}

class CastPropagation : public Pass {
 public:
  const char* name() const override { return "cast_propagation"; }

  Result<bool> Run(Model& model) override {
    Graph& graph = *model.graph;
    std::unordered_set<const Node*> gone;
    for (const auto& node : graph.nodes()) {
      Node* sum = SumBehind(graph, *node);
      if (sum == nullptr) continue;
      node->TruncateInputs(0);
      graph.ReleaseOutputs(sum);
      sum->SetOutput(0, graph.ReleaseOutputs(node.get())[0]);
      sum->SetAttribute("dtype", static_cast<int64_t>(DType::kFloat32));
      gone.insert(node.get());
    }
    graph.RemoveNodes(gone);
    graph.RemoveUnusedValues();
    return !gone.empty();
  }
};

}  // namespace

std::shared_ptr<Pass> MakeCastPropagationPass() { return std::make_shared<CastPropagation>(); }

}  // namespace caesura
