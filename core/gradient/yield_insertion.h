// SPDX-License-Identifier: Apache-2.0
// Cuts a model at YieldOps: a module whose forward part hands its outputs out and takes their
// gradients in, and yields that hand out values in the middle and take them back.
#ifndef CAESURA_CORE_GRADIENT_YIELD_INSERTION_H_
#define CAESURA_CORE_GRADIENT_YIELD_INSERTION_H_

#include <string>
#include <vector>

#include "core/base/status.h"
#include "core/graph/graph.h"

namespace caesura {

struct ModuleGraphOptions {
  // Initializers (or graph inputs that stand for them) to be trained, in the order of their
  // gradients.
  std::vector<std::string> parameters;
  // Graph inputs whose gradients are wanted.
  std::vector<std::string> inputs;
  // Values of the graph that the yield hands out after the model's outputs, and that no gradient
  // comes in for (running statistics).
  std::vector<Value*> extra = {};
};

struct ModuleGraph {
  Node* yield = nullptr;
  // The YieldOp's inputs are the model's outputs, in order, then the extra ones. Its outputs are
  // the gradients of the differentiable ones: gradient_of[k] is the model output that output k
  // belongs to. None when nothing is trained.
  std::vector<int> gradient_of;
  // The graph's outputs are now: gradients of inputs, in the order of the graph's inputs, then of
  // parameters in the given order. Names of what each belongs to:
  std::vector<std::string> differentiated;
  // Parameters that no output depends on; their gradients are zeros.
  std::vector<std::string> unreachable;
};

// Turns `graph` into a module graph: forward nodes, one YieldOp, backward nodes.
//
// Attributes of the YieldOp (names as ONNX Runtime has them): `non_differentiable_outputs` lists
// outputs that no gradient can come in for (integers, or independent of what is trained);
// `full_shape_outputs` lists those whose incoming gradient must have the output's shape even if it
// is all zeros: where it is not added to a gradient from inside, which would broadcast it. An
// output that is listed twice has two gradients, which add up. `names`: the outputs' names.
//
// Types must have been inferred (BuildGradient). On failure the graph computes what it did.
Result<ModuleGraph> BuildModuleGraph(Graph& graph, const ModuleGraphOptions& options);

// Inserts a yield that hands `values` out and takes them back (the same, or others of the same
// types): all readers, also in bodies, and the graph's outputs read what came back. It stands right
// after the last of their producers. Several may be inserted one after the other. On failure (a
// value that depends on another one of them) nothing has changed. The attribute `identity` = 1
// marks it as one that gradients pass through.
Result<Node*> InsertIdentityYield(Graph& graph, const std::vector<Value*>& values);

}  // namespace caesura

#endif  // CAESURA_CORE_GRADIENT_YIELD_INSERTION_H_
