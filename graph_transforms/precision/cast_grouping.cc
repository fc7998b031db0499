// SPDX-License-Identifier: Apache-2.0
#include "graph_transforms/precision/cast_grouping.h"

#include <map>
#include <tuple>
#include <vector>

#include "core/graph/graph_edit.h"
#include "graph_transforms/matching.h"

namespace caesura {
namespace {

class CastGrouping : public Pass {
 public:
  explicit CastGrouping(std::unordered_set<std::string> parameters)
      : parameters_(std::move(parameters)) {}
  const char* name() const override { return "cast_grouping"; }

  Result<bool> Run(Model& model) override {
    Graph& graph = *model.graph;
    std::map<std::tuple<DType, DType, std::string>, std::vector<Node*>> groups;
    for (const auto& node : graph.nodes()) {
      if (!CastsParameter(*node)) continue;
      groups[{node->input(0)->dtype(), node->output(0)->dtype(), node->provider()}].push_back(
          node.get());
    }
    GraphEdit edit(graph);
    for (const auto& [kind, casts] : groups) {
      if (casts.size() == 1) continue;
      std::vector<Value*> inputs, outputs;
      for (Node* cast : casts) {
        inputs.push_back(cast->input(0));
        outputs.push_back(graph.ReleaseOutputs(cast)[0]);
        edit.Remove(*cast);
      }
      const Node& first = *casts.front();
      edit.InsertBefore(first, {"CastAll",
                                std::move(inputs),
                                std::move(outputs),
                                {{"to", static_cast<int64_t>(std::get<1>(kind))}},
                                kCaesuraDomain,
                                first.name() + ".all"});
    }
    return edit.Finish();
  }

 private:
  bool CastsParameter(const Node& node) const {
    return node.Is("Cast") && node.phase() == Phase::kForward && MayBecomeOne(node, node) &&
           parameters_.count(node.input(0)->name()) > 0 && node.input(0)->producer() == nullptr &&
           kFloatTypes.Contains(node.input(0)->dtype()) &&
           kFloatTypes.Contains(node.output(0)->dtype());
  }

  const std::unordered_set<std::string> parameters_;
};

}  // namespace

std::shared_ptr<Pass> MakeCastGroupingPass(std::unordered_set<std::string> parameters) {
  return std::make_shared<CastGrouping>(std::move(parameters));
}

}  // namespace caesura
