// SPDX-License-Identifier: Apache-2.0
// The argument of the gradient hook of an op of the user's: the forward node and the gradients
// of its outputs. It adds the nodes that compute the gradients of the inputs.
//
//   // y = a x
//   // dx = a dy
//   Status ScaleGradient(GradientHook& g) {
//     ASSIGN_OR_RETURN(std::vector<Value*> dx,
//                      g.AddNode("Scale", {g.OutputGradient(0)}, g.node().attributes(), "mine"));
//     g.SetInputGradient(0, dx[0]);
//     return {};
//   }
//
// Implemented by training; core knows only this interface. Values belong to the graph. Thread
// safety: none.
#ifndef CAESURA_CORE_GRAPH_GRADIENT_HOOK_H_
#define CAESURA_CORE_GRAPH_GRADIENT_HOOK_H_

#include <string>
#include <vector>

#include "core/base/status.h"
#include "core/graph/node.h"

namespace caesura {

// One call of a gradient hook: the forward node, and the graph that the hook adds nodes to. It
// lives during the call only.
class GradientHook {
 public:
  virtual ~GradientHook() = default;
  // The forward node: its inputs and outputs may be read by the nodes that are added.
  virtual const Node& node() const = 0;
  // Null where no gradient comes in through output i; at least one does.
  virtual Value* OutputGradient(int i) const = 0;
  // True if the gradient of input i is asked for. A hook that gives none where it is asked for is
  // an error.
  virtual bool NeedsInputGradient(int i) const = 0;
  // A node with fresh outputs, whose types are inferred; null inputs are absent ones, and so are
  // outputs (null in the result) where `outputs` says false. Nodes of ops of the user's have the
  // options of the forward node. Fails where the op's rules for types are broken.
  virtual Result<std::vector<Value*>> AddNode(const std::string& op_type,
                                              const std::vector<Value*>& inputs,
                                              AttributeMap attributes = {},
                                              const std::string& domain = "",
                                              const std::vector<bool>& outputs = {true}) = 0;
  virtual Value* AddConstant(Tensor tensor) = 0;
  // The gradient has the input's shape. Several for one input add up.
  virtual void SetInputGradient(int i, Value* gradient) = 0;
};

}  // namespace caesura

#endif  // CAESURA_CORE_GRAPH_GRADIENT_HOOK_H_
