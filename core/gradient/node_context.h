// SPDX-License-Identifier: Apache-2.0
// NodeContext: a node, as the functions beside its op's row (core/graph/op_def.h) see it.
#ifndef CAESURA_CORE_GRADIENT_NODE_CONTEXT_H_
#define CAESURA_CORE_GRADIENT_NODE_CONTEXT_H_

#include <initializer_list>
#include <string>
#include <utility>

#include "core/gradient/expression.h"

namespace caesura::gradient {

class NodeContext {
 public:
  NodeContext(Node& node, NodeWriter* writer) : node_(node), writer_(writer) {}

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
  // The value of an input that is the same in each run, or null.
  const Tensor* Constant(int i) const;
  // The rank of input i; where it is unknown the node is refused and 0 returned.
  int Rank(int i);

  // Says why this node cannot be made. The user is told together with all other such nodes.
  void Refuse(const std::string& why);
  const std::string& refusal() const { return refusal_; }

  Expr Wrap(Value* value) const { return {value, writer_}; }
  Node& mutable_node() { return node_; }
  NodeWriter& writer() { return *writer_; }

 protected:
  Node& node_;
  NodeWriter* writer_;

 private:
  std::string refusal_;
};

}  // namespace caesura::gradient

#endif  // CAESURA_CORE_GRADIENT_NODE_CONTEXT_H_
