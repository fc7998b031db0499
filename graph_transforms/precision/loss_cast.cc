// SPDX-License-Identifier: Apache-2.0
#include "graph_transforms/precision/loss_cast.h"

#include <vector>

#include "core/graph/graph_edit.h"
#include "graph_transforms/matching.h"

namespace caesura {
namespace {

class LossCast : public Pass {
 public:
  const char* name() const override { return "loss_cast"; }

  Result<bool> Run(Model& model) override {
    Graph& graph = *model.graph;
    std::vector<Node*> casts;
    for (const auto& node : graph.nodes()) {
      if (node->Is("Cast") && IsHalf(node->output(0)->dtype())) casts.push_back(node.get());
    }
    bool changed = false;
    for (Node* cast : casts) changed |= Fuse(graph, cast);
    return changed;
  }

 private:
  static bool IsHalf(DType dtype) { return dtype == DType::kFloat16 || dtype == DType::kBFloat16; }

  static bool Fuse(Graph& graph, Node* cast) {
    std::vector<Node*> chain;  // from the gradient to what the cast reads
    Node* node = cast;
    do {
      const Value* read = node->input(0);
      node = read == nullptr ? nullptr : read->producer();
      if (node == nullptr || read->uses().size() != 1 || graph.IsGraphOutput(read) ||
          !MayBecomeOne(*node, *cast))
        return false;
      chain.insert(chain.begin(), node);
    } while (node->Is("Reshape"));
    if (!node->Is("SoftmaxCrossEntropyLossGrad", kCaesuraDomain) ||
        node->input(1)->dtype() != DType::kFloat32 || node->HasAttribute("dtype"))
      return false;
    const DType half = cast->output(0)->dtype();
    GraphEdit edit(graph);
    Value* last = nullptr;
    for (Node* old : chain) {
      std::vector<Value*> inputs = old->inputs(), outputs;
      AttributeMap attributes = old->attributes();
      if (last != nullptr) inputs[0] = last;
      else attributes["dtype"] = static_cast<int64_t>(half);
      if (old == chain.back()) {
        outputs = graph.ReleaseOutputs(cast);
      } else {
        ValueType type = old->output(0)->type();
        type.dtype = half;
        outputs = {graph.AddValue(graph.UniqueName(old->output(0)->name() + "/half"), type)};
      }
      last = outputs[0];
      Node* made = edit.InsertBefore(
          *old, {old->op_type(), std::move(inputs), std::move(outputs), std::move(attributes),
                 old->domain(), graph.UniqueName(old->name() + ".half")});
      made->set_source(old->source());
    }
    edit.Remove(*cast);
    for (const Node* old : chain) edit.Remove(*old);
    return edit.Finish();
  }
};

}  // namespace

std::shared_ptr<Pass> MakeLossCastPass() { return std::make_shared<LossCast>(); }

}  // namespace caesura
