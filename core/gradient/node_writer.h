// SPDX-License-Identifier: Apache-2.0
// NodeWriter appends the nodes of the backward part: it names them after the forward node, marks
// their phase, gives their outputs types as far as the op tells, and keeps the constants and Shape
// nodes that it has made.
//
// Thread safety: none, as for the graph that it changes.
#ifndef CAESURA_CORE_GRADIENT_NODE_WRITER_H_
#define CAESURA_CORE_GRADIENT_NODE_WRITER_H_

#include <map>
#include <string>
#include <unordered_map>
#include <utility>
#include <vector>

#include "core/graph/graph.h"

namespace caesura::gradient {

class NodeWriter {
 public:
  // `prefix` is put in front of every new name.
  NodeWriter(Graph& graph, Phase phase, std::string prefix = "")
      : graph_(graph), phase_(phase), prefix_(std::move(prefix)) {}

  Graph& graph() { return graph_; }
  // The forward node whose gradient follows; null between nodes.
  void set_origin(const Node* origin) { origin_ = origin; }

  // A node at the newest version of its op, with `output_count` fresh outputs of unknown shape.
  Node* Add(const std::string& op_type, std::vector<Value*> inputs, AttributeMap attributes = {},
            const std::string& domain = "", int output_count = 1);
  // A node whose outputs exist already (null: absent).
  Node* AddWithOutputs(const std::string& op_type, std::vector<Value*> inputs,
                       std::vector<Value*> outputs, AttributeMap attributes = {},
                       const std::string& domain = "");
  // Takes a node of the graph's, made by somebody else, for one of its own.
  void Adopt(Node* node) { nodes_.push_back(node); }
  // A name that is free here, built from the origin's, and a value of such a name.
  std::string FreshName(const std::string& stem);
  Value* FreshValue(const std::string& stem, ValueType type = {});

  // A scalar of a floating dtype, or of an integer or bool one.
  Value* Scalar(double value, DType dtype);
  // An int64 tensor: of rank 1, or a scalar.
  Value* Ints(const std::vector<int64_t>& values);
  Value* Int(int64_t value);
  // The shape of a value, or its dims [start, end) as Shape's attributes count them (`end` 0: to
  // the last one). A constant where the type says it all.
  Value* ShapeOf(Value* value, int64_t start = 0, int64_t end = 0);

  // Every node added so far, in order.
  const std::vector<Node*>& nodes() const { return nodes_; }

 private:
  Node* Finish(Node* node);
  Value* Constant(const std::string& key, Tensor tensor);

  Graph& graph_;
  Phase phase_;
  std::string prefix_;
  const Node* origin_ = nullptr;
  std::vector<Node*> nodes_;
  std::unordered_map<std::string, Value*> constants_;
  std::map<std::pair<Value*, std::pair<int64_t, int64_t>>, Value*> shapes_;
};

// The type of an op's first output as far as the op, its inputs and attributes tell; no shapes.
ValueType OutputType(const std::string& op_type, const std::vector<Value*>& inputs,
                     const AttributeMap& attributes);
ValueType SequenceOf(DType dtype);

// True when both shapes are known to be equal in every run: same numbers, or the same symbols.
bool SameShape(const ValueType& a, const ValueType& b);
// The number of dims; -1 when unknown.
int KnownRank(const ValueType& type);

}  // namespace caesura::gradient

#endif  // CAESURA_CORE_GRADIENT_NODE_WRITER_H_
