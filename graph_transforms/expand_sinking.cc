// SPDX-License-Identifier: Apache-2.0
#include "graph_transforms/expand_sinking.h"

#include "core/graph/node_metadata.h"
#include "core/graph/op_schema.h"
#include "core/graph/op_traits.h"

namespace caesura {
namespace {

bool IsArithmetic(const Node& node) {
  return TraitsOf(node).arithmetic && node.input(0) != nullptr && node.input(1) != nullptr &&
         node.output(0) != nullptr;
}

// What input `i` is an Expand of, where all shapes are known.
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
void GoBehind(Graph& graph, Node& node, int i, const Shape& shape) {
  const Node* expand = node.input(i)->producer();
  const size_t tail = graph.nodes().size();
  std::vector<Value*> inputs = {node.input(0), node.input(1)};
  inputs[i] = expand->input(0);
  Value* small = graph.AddValue("", ValueType::Tensor(node.output(0)->dtype(), shape));
  const std::vector<Value*> outputs = graph.ReleaseOutputs(&node);
  Node* made[] = {
      graph.AddNode(node.op_type(), inputs, {small}, {}, "", graph.UniqueName(node.name())),
      graph.AddNode("Expand", {small, expand->input(1)}, outputs, {}, "",
                    graph.UniqueName(expand->name()))};
  for (Node* each : made) {
    each->set_since_version(SinceVersion(each->op_type(), ""));
    CopyMetadata(node, each);
  }
  graph.MoveTailBefore(tail, &node);
}

bool RunOn(Graph& graph) {
  bool changed = false;
  std::unordered_set<const Node*> gone;
  for (size_t n = 0; n < graph.nodes().size(); ++n) {
    Node& node = *graph.nodes()[n];
    for (Graph* body : node.Subgraphs()) changed |= RunOn(*body);
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
        GoBehind(graph, node, i, *shape);
        gone.insert(&node);
        n += 2;  // the node itself has moved on by two places
        break;
      }
    }
  }
  graph.RemoveNodes(gone);
  return changed || !gone.empty();
}

class ExpandSinking : public Pass {
 public:
  const char* name() const override { return "expand_sinking"; }
  Result<bool> Run(Model& model) override { return RunOn(*model.graph); }
};

}  // namespace

std::shared_ptr<Pass> MakeExpandSinkingPass() { return std::make_shared<ExpandSinking>(); }

}  // namespace caesura
