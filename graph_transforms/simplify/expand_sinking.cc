// SPDX-License-Identifier: Apache-2.0
#include "graph_transforms/simplify/expand_sinking.h"

#include "core/graph/graph_edit.h"
#include "core/graph/op_def.h"

namespace caesura {
namespace {

bool IsArithmetic(const Node& node) {
  return OpDefOf(node).arithmetic && node.input(0) != nullptr && node.input(1) != nullptr &&
         node.output(0) != nullptr;
}

// The value that input `i` is an Expand of, where all shapes are known.
Value* Expanded(const Node& node, int i) {
  const Value* input = node.input(i);
  const Node* expand = input->producer();
  if (expand == nullptr || !expand->Is("Expand") || input->graph() != node.output(0)->graph())
    return nullptr;
  if (expand->input(0) == nullptr || expand->input(1) == nullptr) return nullptr;
  return expand->input(0)->type().ConcreteShape() && input->type().ConcreteShape()
             ? expand->input(0)
             : nullptr;
}

// Puts the node's arithmetic in front of the Expand that its input `i` comes from.
void SinkExpand(Graph& graph, GraphEdit& edit, Node& node, int i, const Shape& shape) {
  const Node* expand = node.input(i)->producer();
  std::vector<Value*> inputs = {node.input(0), node.input(1)};
  inputs[i] = expand->input(0);
  Value* small = graph.AddValue("", ValueType::Tensor(node.output(0)->dtype(), shape));
  edit.InsertBefore(
      node, {node.op_type(), std::move(inputs), {small}, {}, "", graph.UniqueName(node.name())});
  edit.Replace(node, {"Expand",
                      {small, expand->input(1)},
                      graph.ReleaseOutputs(&node),
                      {},
                      "",
                      graph.UniqueName(expand->name())});
}

bool SinkExpands(Graph& graph) {
  bool changed = false;
  GraphEdit edit(graph);
  const size_t count = graph.nodes().size();
  for (size_t n = 0; n < count; ++n) {
    Node& node = *graph.nodes()[n];
    for (Graph* body : node.Subgraphs()) changed |= SinkExpands(*body);
    if (!IsArithmetic(node)) continue;
    const std::optional<Shape> result = node.output(0)->type().ConcreteShape();
    for (int i = 0; i < 2 && result; ++i) {
      Value* x = Expanded(node, i);
      const std::optional<Shape> other = node.input(1 - i)->type().ConcreteShape();
      if (x == nullptr || !other) continue;
      const Result<Shape> shape = BroadcastShape(*x->type().ConcreteShape(), *other);
      if (!shape.ok()) continue;
      if (*shape == *result) {
        node.SetInput(i, x);
        changed = true;
      } else if (other->elements() == 1 && *node.input(i)->type().ConcreteShape() == *result &&
                 node.input(i)->producer()->provider() == node.provider()) {
        SinkExpand(graph, edit, node, i, *shape);
        break;
      }
    }
  }
  return edit.Finish() || changed;
}

class ExpandSinking : public Pass {
 public:
  const char* name() const override { return "expand_sinking"; }
  Result<bool> Run(Model& model) override { return SinkExpands(*model.graph); }
};

}  // namespace

std::shared_ptr<Pass> MakeExpandSinkingPass() { return std::make_shared<ExpandSinking>(); }

}  // namespace caesura
