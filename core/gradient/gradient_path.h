// SPDX-License-Identifier: Apache-2.0
// The values of a graph between those that are differentiated and those by which they are.
#ifndef CAESURA_CORE_GRADIENT_GRADIENT_PATH_H_
#define CAESURA_CORE_GRADIENT_GRADIENT_PATH_H_

#include <unordered_set>
#include <utility>
#include <vector>

#include "core/graph/op_def.h"
#include "core/graph/graph.h"

namespace caesura::gradient {

// While it lives each DequantizeLinear of `graph` that reads what a QuantizeLinear or
// DynamicQuantizeLinear wrote has the floating value before the quantization as a further input,
// kQuantizedFrom: gradients pass straight through the pair to it.
class QuantizedLinks {
 public:
  static constexpr int kQuantizedFrom = 3;
  explicit QuantizedLinks(Graph& graph);
  ~QuantizedLinks();
  QuantizedLinks(const QuantizedLinks&) = delete;
  QuantizedLinks& operator=(const QuantizedLinks&) = delete;

 private:
  std::vector<std::pair<Node*, int>> linked_;  // and how many inputs each had
};

class GradientPath {
 public:
  enum class Inputs {
    kAll,
    kNoSettings,  // gradients of inputs that set an op up (scales, regions, weights of classes) do
                  // not count
  };
  // The values that depend, differentiably, on one of `xs` and lead to one of `ys`. Gradients do
  // not pass through the values in `stop`. REQUIRES: the nodes of `graph` are in topological order.
  GradientPath(const Graph& graph, const std::vector<Value*>& xs, const std::vector<Value*>& ys,
               const std::unordered_set<const Value*>& stop, Inputs inputs = Inputs::kAll);

  bool Contains(const Value* value) const { return values_.count(value) > 0; }
  // True when the value depends, differentiably, on one of xs.
  bool Reaches(const Value* value) const { return reached_.count(value) > 0; }
  // The nodes that gradients pass through, in the graph's order.
  const std::vector<Node*>& nodes() const { return nodes_; }

 private:
  void SweepForward(const Graph& graph, const std::vector<Value*>& xs);
  void SweepBackward(const Graph& graph, const std::vector<Value*>& ys);
  bool Passes(const Node& node) const;
  bool Carries(const GradientRule* rule, const Node& node, int i) const;

  const Inputs inputs_;
  std::unordered_set<const Value*> stop_;
  std::unordered_set<const Value*> reached_;  // from xs
  std::unordered_set<const Value*> values_;
  std::vector<Node*> nodes_;
};

bool IsComplex(DType dtype);
// False where the type shows that no gradient can flow: integers, strings, sequences of them.
bool MayCarryGradient(const ValueType& type);
// False where `rule` (null: none is known) says that no gradient leaves through input i of the
// node.
bool InputCarries(const GradientRule* rule, const Node& node, int i);
// True where input i sets the op up and is no weight of the model's, though it may have a gradient:
// the scale of a DequantizeLinear, what GradientRule::refuses lists.
bool IsSetting(const GradientRule* rule, const Node& node, int i);
// Explicit inputs, then the outer values that the node's bodies read; null for absent ones.
std::vector<Value*> AllInputs(const Node& node);

}  // namespace caesura::gradient

#endif  // CAESURA_CORE_GRADIENT_GRADIENT_PATH_H_
