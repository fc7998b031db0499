// SPDX-License-Identifier: Apache-2.0
// Types and symbolic shapes of values, from the types of the ends and the schemas of the nodes;
// small integer values (shapes, axes, sizes) are followed through the graph to find more.
//
// What is found is merged into what a value's type says already: element types must agree, dims
// that are found win, and a dim that stays unknown gets a symbol of its own ("unk__3"), which later
// runs keep.
#ifndef CAESURA_CORE_ONNX_INFERENCE_SHAPE_INFERENCE_H_
#define CAESURA_CORE_ONNX_INFERENCE_SHAPE_INFERENCE_H_

#include <memory>

#include "core/base/status.h"
#include "core/graph/graph.h"

namespace caesura {

// Infers all of `graph` and its bodies. Nodes of unknown domains, and what hangs on them alone,
// stay as they are. Fails with kInvalidModel listing all nodes whose inputs break their schema's
// rules; the types of the others are set all the same. Each node is visited once (bodies of loops
// perhaps twice).
Status InferShapes(Graph& graph);
Status InferShapes(Model& model);

// The types of one node's outputs, from its inputs' types and constants. Unknown dims stay unknown.
Status InferNodeTypes(Graph& graph, Node* node);

// As InferNodeTypes, for many nodes of a graph that grows: remembers small integer values from node
// to node, so that shape arithmetic is followed. Nodes come in topological order and stay in the
// graph.
class NodeTypeInference {
 public:
  NodeTypeInference();
  ~NodeTypeInference();
  Status Infer(Node* node);

 private:
  class Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace caesura

#endif  // CAESURA_CORE_ONNX_INFERENCE_SHAPE_INFERENCE_H_
