// SPDX-License-Identifier: Apache-2.0
// Which values of a graph lie between what is differentiated and what it is differentiated by.
#ifndef CAESURA_TRAINING_GRADIENT_GRADIENT_PATH_H_
#define CAESURA_TRAINING_GRADIENT_GRADIENT_PATH_H_

#include <unordered_set>
#include <vector>

#include "core/graph/graph.h"

namespace caesura::gradient {

struct GradientRule;

class GradientPath {
 public:
  // The values that depend, differentiably, on one of `xs` and lead to one of `ys`. Gradients do not pass through the
  // values in `stop`. REQUIRES: the nodes of `graph` are in topological order.
  GradientPath(const Graph& graph, const std::vector<Value*>& xs, const std::vector<Value*>& ys,
               const std::unordered_set<const Value*>& stop);

  bool Contains(const Value* value) const { return values_.count(value) > 0; }
  // The nodes that gradients pass through, in the graph's order.
  const std::vector<Node*>& nodes() const { return nodes_; }

 private:
  void SweepForward(const Graph& graph, const std::vector<Value*>& xs);
  void SweepBackward(const Graph& graph, const std::vector<Value*>& ys);
  bool Passes(const Node& node) const;

  std::unordered_set<const Value*> stop_;
  std::unordered_set<const Value*> reached_;  // from xs
  std::unordered_set<const Value*> values_;
  std::vector<Node*> nodes_;
};

bool IsComplex(DType dtype);
// False where the type shows that no gradient can flow: integers, strings, sequences of them.
bool MayCarryGradient(const ValueType& type);
// False where `rule` (null: none is known) says that no gradient leaves through input i of the node.
bool InputCarries(const GradientRule* rule, const Node& node, int i);
// Explicit inputs, then the outer values that the node's bodies read; null for absent ones.
std::vector<Value*> AllInputs(const Node& node);

}  // namespace caesura::gradient

#endif  // CAESURA_TRAINING_GRADIENT_GRADIENT_PATH_H_
