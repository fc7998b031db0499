// SPDX-License-Identifier: Apache-2.0
#include "core/onnx/inference/shape_inference.h"

#include "core/onnx/inference/type_inference.h"

namespace caesura {

Status InferShapes(Graph& graph) {
  const Graph* top = &graph;
  while (top->parent() != nullptr) top = top->parent();
  TypeInference inference(/*make_symbols=*/true);
  inference.ReserveSymbols(*top);
  inference.InferGraph(graph);
  return inference.Verdict();
}

Status InferShapes(Model& model) { return InferShapes(*model.graph); }

Status InferNodeTypes(Graph& graph, Node* node) {
  (void)graph;
  TypeInference inference(/*make_symbols=*/false);
  inference.InferNode(*node);
  return inference.Verdict();
}

class NodeTypeInference::Impl {
 public:
  TypeInference inference{/*make_symbols=*/false};
};

NodeTypeInference::NodeTypeInference() : impl_(std::make_unique<Impl>()) {}
NodeTypeInference::~NodeTypeInference() = default;

Status NodeTypeInference::Infer(Node* node) {
  impl_->inference.InferNode(*node);
  return impl_->inference.Verdict();
}

}  // namespace caesura
