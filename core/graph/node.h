// SPDX-License-Identifier: Apache-2.0
// The vocabulary of the IR: types, values, attributes, nodes. A Graph (graph.h) owns all of them.
#ifndef CAESURA_CORE_GRAPH_NODE_H_
#define CAESURA_CORE_GRAPH_NODE_H_

#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <variant>
#include <vector>

#include "core/tensor/tensor.h"

namespace caesura {

class Graph;
class Node;

// The domain of the ops that are ours: YieldOp, gradients, optimizer updates
// (core/ops).
inline constexpr char kCaesuraDomain[] = "ai.caesura";
inline constexpr char kContribDomain[] = "com.microsoft";  // onnxruntime's own ops

// One dim of a type: a number, a symbol ("batch"), or unknown (neither).
struct Dim {
  int64_t value = -1;
  std::string symbol;
  bool known() const { return value >= 0; }
  bool operator==(const Dim& o) const { return value == o.value && symbol == o.symbol; }
};

// The known facts about a value before it exists.
struct ValueType {
  // ONNX's kinds of types.
  enum class Kind : uint8_t { kUnknown, kTensor, kSequence, kOptional, kMap };
  Kind kind = Kind::kUnknown;
  DType dtype = DType::kUndefined;           // kTensor
  DType key = DType::kUndefined;             // kMap
  std::optional<std::vector<Dim>> shape;     // kTensor; empty: rank unknown
  std::shared_ptr<const ValueType> element;  // kSequence, kOptional; kMap: of a value

  static ValueType Tensor(DType dtype) {
    return {Kind::kTensor, dtype, DType::kUndefined, std::nullopt, nullptr};
  }
  static ValueType Tensor(DType dtype, const Shape& shape);
  bool is_tensor() const { return kind == Kind::kTensor; }
  // The shape when every dim is a number.
  std::optional<Shape> ConcreteShape() const;
  // "float32[batch, 3]", "sequence(int64[?])", "map(string, float32[])"
  std::string ToString() const;
};

// A named edge: a graph input, an initializer or one output of one node.
class Value {
 public:
  // One input of a node that reads the value.
  struct Use {
    Node* node;
    int index;  // of the node's inputs
  };
  const std::string& name() const { return name_; }
  const ValueType& type() const { return type_; }
  void set_type(ValueType type) { type_ = std::move(type); }
  DType dtype() const { return type_.dtype; }
  // The node that writes it, or null for graph inputs and initializers.
  Node* producer() const { return producer_; }
  // Reads by nodes of this graph and of its subgraphs, in no particular order; graph outputs are
  // not uses.
  const std::vector<Use>& uses() const { return uses_; }
  Graph* graph() const { return graph_; }

 private:
  friend class Graph;
  friend class Node;
  std::string name_;
  ValueType type_;
  Node* producer_ = nullptr;
  std::vector<Use> uses_;
  Graph* graph_ = nullptr;
};

// The value of an attribute: one of ONNX's kinds. Graphs are bodies of control flow.
using Attribute =
    std::variant<int64_t, float, std::string, std::vector<int64_t>, std::vector<float>,
                 std::vector<std::string>, Tensor, std::vector<Tensor>, std::shared_ptr<Graph>,
                 std::vector<std::shared_ptr<Graph>>, ValueType>;
using AttributeMap = std::map<std::string, Attribute>;

// The part of a training step that a node belongs to.
enum class Phase : uint8_t { kForward, kBackward, kOptimizer };

// Everything that a node says beside its computation. A node that stands in another one's place,
// or is a copy of it, takes over all of it.
struct NodeMetadata {
  Phase phase = Phase::kForward;
  std::string source;    // the user's module and source line, where the exporter left them
  std::string provider;  // name of the provider that must run it; empty: placement decides
};

// One op of a graph. The graph owns it and makes it (Graph::AddNode).
class Node {
 public:
  const std::string& op_type() const { return op_type_; }
  // "" is ONNX's default domain ("ai.onnx" is folded into it on load).
  const std::string& domain() const { return domain_; }
  // Never empty and unique in its graph.
  const std::string& name() const { return name_; }
  // The schema version whose semantics the node has: the `since_version` of its schema, after
  // normalisation on load. 0 where no schema is known.
  int since_version() const { return since_version_; }
  void set_since_version(int version) { since_version_ = version; }
  bool Is(const char* op_type, const char* domain = "") const {
    return op_type_ == op_type && domain_ == domain;
  }

  // Null marks an absent optional input or output.
  const std::vector<Value*>& inputs() const { return inputs_; }
  const std::vector<Value*>& outputs() const { return outputs_; }
  // The i-th input, or null when absent or out of range.
  Value* input(int i) const {
    return static_cast<size_t>(i) < inputs_.size() ? inputs_[i] : nullptr;
  }
  Value* output(int i) const {
    return static_cast<size_t>(i) < outputs_.size() ? outputs_[i] : nullptr;
  }
  // Replaces an input (grows the list with absent ones as needed); keeps the uses of both values
  // right.
  void SetInput(int i, Value* value);
  // Drops inputs from index `count` on.
  void TruncateInputs(int count);
  // Makes an output that was absent (grows the list as needed). REQUIRES: `value` has no producer.
  void SetOutput(int i, Value* value);

  const AttributeMap& attributes() const { return attributes_; }
  bool HasAttribute(const std::string& name) const { return attributes_.count(name) > 0; }
  void SetAttribute(const std::string& name, Attribute value) {
    attributes_[name] = std::move(value);
  }
  void RemoveAttribute(const std::string& name) { attributes_.erase(name); }
  // The attribute as T, or `fallback` when it is absent or of another kind.
  template <typename T>
  T Attr(const std::string& name, T fallback) const {
    const T* found = FindAttr<T>(name);
    return found == nullptr ? fallback : *found;
  }
  template <typename T>
  const T* FindAttr(const std::string& name) const {
    auto it = attributes_.find(name);
    return it == attributes_.end() ? nullptr : std::get_if<T>(&it->second);
  }
  // All subgraphs among the attributes, in attribute order.
  std::vector<Graph*> Subgraphs() const;

  const NodeMetadata& metadata() const { return metadata_; }
  void set_metadata(NodeMetadata metadata) { metadata_ = std::move(metadata); }
  Phase phase() const { return metadata_.phase; }
  void set_phase(Phase phase) { metadata_.phase = phase; }
  const std::string& source() const { return metadata_.source; }
  void set_source(std::string source) { metadata_.source = std::move(source); }
  const std::string& provider() const { return metadata_.provider; }
  void set_provider(std::string provider) { metadata_.provider = std::move(provider); }
  Graph* graph() const { return graph_; }

  // "[Relu 'relu_3']", the prefix of error messages.
  std::string Label() const;

 private:
  friend class Graph;
  std::string op_type_, domain_, name_;
  int since_version_ = 0;
  std::vector<Value*> inputs_, outputs_;
  AttributeMap attributes_;
  NodeMetadata metadata_;
  Graph* graph_ = nullptr;
};

}  // namespace caesura

#endif  // CAESURA_CORE_GRAPH_NODE_H_
