// SPDX-License-Identifier: Apache-2.0
#include "graph_transforms/precision/cast_propagation.h"

#include "core/graph/graph_edit.h"
#include "core/graph/op_def.h"
#include "graph_transforms/matching.h"

namespace caesura {
namespace {

// The maker of the value that only `node` reads, where `node` is a cast of halves to float32;
// otherwise null.
Node* MakerOfWidened(const Graph& graph, const Node& node) {
  if (!IsWideningCast(node)) return nullptr;
  const Value* value = node.input(0);
  const bool alone = value->uses().size() == 1 && !graph.IsGraphOutput(value);
  return alone && value->graph() == &graph ? value->producer() : nullptr;
}

// Makes `maker` write the value that `cast` wrote.
void TakeOutput(Graph& graph, Node* maker, Node* cast) {
  cast->TruncateInputs(0);
  graph.ReleaseOutputs(maker);
  maker->SetOutput(0, graph.ReleaseOutputs(cast)[0]);
}

class CastPropagation : public Pass {
 public:
  const char* name() const override { return "cast_propagation"; }

  Result<bool> Run(Model& model) override {
    Graph& graph = *model.graph;
    GraphEdit edit(graph);
    for (const auto& node : graph.nodes()) {
      Node* cast = node.get();
      while (Node* view = MakerOfWidened(graph, *cast)) {
        if (OpDefOf(*view).view == OpDef::View::kNone || view->provider() != cast->provider())
          break;
        Value* source = view->input(0);
        TakeOutput(graph, view, cast);
        ValueType type = source->type();
        type.dtype = DType::kFloat32;
        cast->SetInput(0, source);
        cast->SetOutput(0, graph.AddValue(source->name() + "/wide", std::move(type)));
        view->SetInput(0, cast->output(0));
        edit.MoveBefore(*cast, *view);
      }
      Node* sum = MakerOfWidened(graph, *cast);
      if (sum == nullptr || !sum->Is("SumTo", kCaesuraDomain) || !MayBecomeOne(*sum, *cast))
        continue;
      TakeOutput(graph, sum, cast);
      sum->SetAttribute("dtype", static_cast<int64_t>(DType::kFloat32));
      edit.Remove(*cast);
    }
    if (!edit.Finish()) return false;
    graph.RemoveUnusedValues();
    return true;
  }
};

}  // namespace

std::shared_ptr<Pass> MakeCastPropagationPass() { return std::make_shared<CastPropagation>(); }

}  // namespace caesura
