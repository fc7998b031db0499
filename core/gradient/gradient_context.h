// SPDX-License-Identifier: Apache-2.0
// GradientContext: a rule's view of one forward node. GradientStore: the gradients found so far.
#ifndef CAESURA_CORE_GRADIENT_GRADIENT_CONTEXT_H_
#define CAESURA_CORE_GRADIENT_GRADIENT_CONTEXT_H_

#include <map>
#include <string>
#include <unordered_map>
#include <unordered_set>
#include <utility>
#include <vector>

#include "core/graph/op_def.h"
#include "core/gradient/gradient_path.h"
#include "core/gradient/node_context.h"

namespace caesura::gradient {

// The gradient of each value, accumulated as contributions come in, so that each is complete as
// early as it can be.
class GradientStore {
 public:
  explicit GradientStore(NodeWriter* writer) : writer_(writer) {}
  // Null when nothing has arrived.
  Value* Find(const Value* value) const;
  void Add(const Value* value, Value* gradient);

 private:
  NodeWriter* writer_;
  std::unordered_map<const Value*, Value*> gradients_;
  std::unordered_set<const Value*> added_;  // which several values may have
};

class GradientContext : public NodeContext {
 public:
  // A context that only answers questions (`applies` of a rule) has neither writer nor store.
  GradientContext(Node& node, const GradientRule* rule, const GradientPath& path,
                  NodeWriter* writer = nullptr, GradientStore* store = nullptr)
      : NodeContext(node, writer), rule_(rule), path_(path), store_(store) {}

  // --- the forward node ---
  // The constant value of an input that nothing is differentiated by, or null.
  const Tensor* ConstantInput(int i) const;

  // --- what is asked for ---
  // True when some x depends on input i and its gradient is wanted.
  bool Needs(int i) const;
  bool NeedsValue(const Value* value) const { return path_.Contains(value); }
  // True if output i is on a path to a y: a gradient may arrive through it.
  bool IsOnPath(int i) const {
    return node_.output(i) != nullptr && path_.Contains(node_.output(i));
  }
  // The gradient of output i; null when none flows through it.
  Expr dY(int i = 0) const;
  Expr dYOrZeros(int i) const;

  // --- what is answered ---
  // A gradient of input i, which the driver fits to the input's shape (see
  // GradientRule::broadcasts) and dtype and adds to what is there. Ignored where none is needed or
  // `gradient` is null.
  void SetInputGradient(int i, Expr gradient);
  // A gradient of a value that the node's bodies read, treated as SetInputGradient does.
  void SetValueGradient(Value* value, Expr gradient);
  // For ops of several results: SetInputGradient of each; makes the node without the results that
  // nobody needs. `inputs_of[k]` is the forward input whose gradient result k is (-1: not wanted).
  void SetInputGradients(const std::string& training_op, const Exprs& inputs,
                         const std::vector<int>& inputs_of, AttributeMap attributes);
  // Output i of the forward node, which is added where the model left it out.
  Expr EnsureOutput(int i, ValueType type);
  // Output i of `training_op`, an op of ours that does what the forward node does and takes its
  // place. After it the rule reads no outputs, and ends with SetInputGradients, which removes the
  // node.
  Expr TrainingOutput(const std::string& training_op, int i, ValueType type);

 private:
  const GradientRule* rule_;
  const GradientPath& path_;
  GradientStore* store_;
};

}  // namespace caesura::gradient

#endif  // CAESURA_CORE_GRADIENT_GRADIENT_CONTEXT_H_
