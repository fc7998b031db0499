// SPDX-License-Identifier: Apache-2.0
// The gradient of a body of If, Loop or Scan: built inside the body, then cut off and moved into a
// body of its own. What the backward nodes read of the forward ones (`saved`) the owner hands
// across.
#ifndef CAESURA_CORE_GRADIENT_BODY_GRADIENT_H_
#define CAESURA_CORE_GRADIENT_BODY_GRADIENT_H_

#include <memory>
#include <string>
#include <unordered_map>
#include <unordered_set>
#include <vector>

#include "core/base/status.h"
#include "core/graph/graph.h"

namespace caesura::gradient {

class GradientContext;
class NodeWriter;
using ValueMap = std::unordered_map<const Value*, Value*>;

class BodyGradient {
 public:
  // Differentiates values `ys` of `body` (its outputs) by `xs` (its inputs, or outer values that it
  // reads).
  static Result<BodyGradient> Build(Graph& body, const std::vector<Value*>& ys,
                                    const std::vector<Value*>& xs, const std::string& name_prefix);

  // Placeholders for the gradients of ys that come in.
  const std::vector<Value*>& seeds() const { return seeds_; }
  // Gradients of xs, in their order. An x that no y depends on has zeros, and unreachable(i) is
  // true.
  const std::vector<Value*>& dxs() const { return dxs_; }
  bool unreachable(size_t i) const { return unreachable_.count(xs_[i]) > 0; }
  // Values of the body that the gradients in `wanted` need.
  std::vector<Value*> Saved(const std::vector<Value*>& wanted) const;

  // Appends the nodes that make `wanted` to `target`, with `bindings` in place of the seeds and
  // saved values; returns the counterparts of `wanted`, each made by a node of `target`.
  std::vector<Value*> CopyTo(Graph& target, const std::vector<Value*>& wanted,
                             ValueMap bindings) const;
  // Takes the backward nodes out of the body, which then computes what it did.
  void RemoveFromBody();

 private:
  std::unordered_set<const Node*> NodesBehind(const std::vector<Value*>& wanted) const;

  Graph* body_ = nullptr;
  std::vector<Value*> xs_, seeds_, dxs_;
  std::unordered_set<const Value*> unreachable_;
  std::vector<Node*> nodes_;
};

// --- the node that owns bodies ---
Graph& BodyOf(const GradientContext& g, const char* attribute);
// The outer values that the node's bodies read and that need a gradient.
std::vector<Value*> NeededCaptures(const GradientContext& g);
// Adds output `index` to the forward node.
Value* AddOutput(GradientContext& g, size_t index, const std::string& stem, ValueType type);
// A copy of `value` as an output of `body`: an output may not be an input or a constant itself.
void AddCopyAsOutput(Graph& body, Value* value);

// Writes the nodes of `body`; `bindings` has a value for each of its inputs. Returns the
// counterparts of its outputs.
std::vector<Value*> CopyBody(const Graph& body, NodeWriter& writer, ValueMap bindings);

}  // namespace caesura::gradient

#endif  // CAESURA_CORE_GRADIENT_BODY_GRADIENT_H_
