// SPDX-License-Identifier: Apache-2.0
// GradientContext: a rule's view of one forward node. GradientStore: the gradients found so far.
#ifndef CAESURA_CORE_GRADIENT_GRADIENT_CONTEXT_H_
#define CAESURA_CORE_GRADIENT_GRADIENT_CONTEXT_H_

#include <initializer_list>
#include <string>
#include <unordered_map>
#include <unordered_set>
#include <utility>
#include <vector>

#include "core/graph/op_def.h"
#include "core/gradient/expression.h"
#include "core/gradient/gradient_path.h"

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

class GradientContext {
 public:
  // A context that only answers questions (`applies` of a rule) has neither writer nor store.
  GradientContext(Node& node, const GradientRule* rule, const GradientPath& path,
                  NodeWriter* writer = nullptr, GradientStore* store = nullptr)
      : node_(node), rule_(rule), path_(path), writer_(writer), store_(store) {}

  // --- the forward node ---
  const Node& node() const { return node_; }
  int input_count() const { return static_cast<int>(node_.inputs().size()); }
  int output_count() const { return static_cast<int>(node_.outputs().size()); }
  bool HasInput(int i) const { return node_.input(i) != nullptr; }
  // Null when absent.
  Expr input(int i) const { return {node_.input(i), writer_}; }
  Expr output(int i = 0) const { return {node_.output(i), writer_}; }
  template <typename T>
  T Attr(const std::string& name, T fallback) const {
    return node_.Attr<T>(name, std::move(fallback));
  }
  int64_t IntAttr(const std::string& name, int64_t fallback) const {
    return node_.Attr<int64_t>(name, fallback);
  }
  double FloatAttr(const std::string& name, double fallback) const {
    return node_.Attr<float>(name, static_cast<float>(fallback));
  }
  // The attributes of these names, as far as the node has them.
  AttributeMap Attributes(std::initializer_list<const char*> names) const;
  const AttributeMap& attributes() const { return node_.attributes(); }
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
  // The rank of input i; where it is unknown the node is refused and 0 returned.
  int Rank(int i);
  // The gradient of this node cannot be made; told to the user together with all other such nodes.
  void Refuse(const std::string& why);
  const std::string& refusal() const { return refusal_; }

  Expr Wrap(Value* value) const { return {value, writer_}; }
  Node& mutable_node() { return node_; }
  NodeWriter& writer() { return *writer_; }

 private:
  Node& node_;
  const GradientRule* rule_;
  const GradientPath& path_;
  NodeWriter* writer_;
  GradientStore* store_;
  std::string refusal_;
};

}  // namespace caesura::gradient

#endif  // CAESURA_CORE_GRADIENT_GRADIENT_CONTEXT_H_
