// SPDX-License-Identifier: Apache-2.0
// Graph: a mutable dataflow graph in single-assignment form, with ONNX's meaning; its types,
// values, attributes and nodes. Passes rewrite it; planning (core/plan) reads it and never changes
// it.
//
// Thread safety: none while it changes; const access from many threads is fine.
#ifndef CAESURA_CORE_GRAPH_GRAPH_H_
#define CAESURA_CORE_GRAPH_GRAPH_H_

#include <cassert>
#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <unordered_map>
#include <unordered_set>
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

class OpDefSet;  // op_def.h

// A node to be made, as for Graph::AddNode.
struct NodeSpec {
  std::string op_type;
  std::vector<Value*> inputs, outputs;
  AttributeMap attributes = {};
  std::string domain = {};
  std::string name = {};
};

// A graph owns its values and nodes; pointers to them live until they are erased or the graph goes.
class Graph {
 public:
  explicit Graph(std::string name = "graph", Graph* parent = nullptr)
      : name_(std::move(name)), parent_(parent) {}
  Graph(const Graph&) = delete;
  Graph& operator=(const Graph&) = delete;

  const std::string& name() const { return name_; }
  // The graph that holds this one as a body of If, Loop or Scan; null at the top. Names of the
  // parents' values are visible here.
  Graph* parent() const { return parent_; }
  // Schemas of the ops that only one session knows, for the nodes here and in bodies; null when
  // there are none. Clones share them.
  const std::shared_ptr<const OpDefSet>& own_ops() const {
    return parent_ != nullptr ? parent_->own_ops() : own_ops_;
  }
  // REQUIRES: the graph has no parent.
  void set_own_ops(std::shared_ptr<const OpDefSet> schemas) {
    assert(parent_ == nullptr);
    own_ops_ = std::move(schemas);
  }

  // --- values ---
  // A new value. An empty `name`, or one that is taken here or above, is made unique.
  Value* AddValue(const std::string& name, ValueType type = {});
  // By name in this graph only; null when there is none.
  Value* FindValue(const std::string& name) const;
  // By name here or in a parent.
  Value* Resolve(const std::string& name) const;
  std::string UniqueName(const std::string& stem);
  // Every value of this graph, in order of creation.
  std::vector<Value*> Values() const;

  // --- nodes ---
  // Appends a node. Output values must be fresh (AddValue); null entries are absent ones. An empty
  // name is made from the op type.
  Node* AddNode(const std::string& op_type, std::vector<Value*> inputs, std::vector<Value*> outputs,
                AttributeMap attributes = {}, const std::string& domain = "",
                const std::string& name = "");
  // Appends a node with `output_count` fresh outputs whose types are left unknown; the name of the
  // first output is built from `stem` (or the op type).
  Node* AddOp(const std::string& op_type, std::vector<Value*> inputs, AttributeMap attributes = {},
              const std::string& domain = "", int output_count = 1, const std::string& stem = "");
  // Appends a node that does work of `origin`, a node of this graph: it is of the newest version of
  // its op and has the metadata of `origin`.
  Node* AddFor(const Node& origin, NodeSpec spec);
  // Adds a node as AddFor does, but in front of `origin` in the list. Its time grows with the
  // number of nodes after `origin`; GraphEdit (graph_edit.h) puts many nodes in place at once.
  Node* InsertBefore(const Node& origin, NodeSpec spec);
  // Appends a copy of `node`, which may be another graph's: its op, version, attributes and
  // metadata, with bodies cloned (Clone; `mapping` as there). An empty name is that of `node`.
  Node* CloneNode(const Node& node, std::vector<Value*> inputs, std::vector<Value*> outputs,
                  const std::string& name = "",
                  std::unordered_map<const Value*, Value*>* mapping = nullptr);
  // Removes a node and its output values (RemoveNodes).
  void RemoveNode(Node* node);
  // Removes nodes and their output values, in one sweep. The nodes may read each other. REQUIRES:
  // nothing else reads their outputs, which are no outputs of the graph.
  void RemoveNodes(const std::unordered_set<const Node*>& nodes);
  // Takes the outputs from a node that is about to be replaced, so that others can write the same
  // values (AddNode). The node stays, without outputs; the values have no producer until then.
  std::vector<Value*> ReleaseOutputs(Node* node);
  // Moves the nodes from list position `first` on in front of `before`, which stands earlier.
  void MoveTailBefore(size_t first, const Node* before);
  // In list order; topological after load and after SortTopologically().
  const std::vector<std::unique_ptr<Node>>& nodes() const { return nodes_; }
  // Stable: keeps the list's order where the edges allow. Fails with kInvalidModel on a cycle,
  // naming a node on it.
  Status SortTopologically();
  // Puts the nodes into this order, which a run needs to be a topological one. REQUIRES: all nodes
  // of the graph, each once.
  void Reorder(const std::vector<const Node*>& order);
  // Every read of `from` (also as graph output, also in subgraphs) becomes a read of `to`.
  void ReplaceAllUses(Value* from, Value* to);
  // Values of enclosing graphs that the subgraphs of `node` read, each once, in order of first use.
  static std::vector<Value*> ImplicitInputs(const Node& node);

  // --- ends ---
  // Graph inputs in order. Initializers are not inputs unless they are listed here too (then they
  // are defaults).
  const std::vector<Value*>& inputs() const { return inputs_; }
  const std::vector<Value*>& outputs() const { return outputs_; }
  Value* AddInput(const std::string& name, ValueType type);
  void AddInput(Value* value) { inputs_.push_back(value); }
  void AddOutput(Value* value) { outputs_.push_back(value); }
  void SetOutput(int i, Value* value) { outputs_[i] = value; }
  void RemoveInput(Value* value);
  void ClearOutputs() { outputs_.clear(); }

  // --- initializers ---
  // Makes `value` a constant of the graph (or the initial value of a parameter, when training).
  void SetInitializer(Value* value, Tensor tensor) { initializers_[value] = std::move(tensor); }
  // A fresh value with `tensor` as its initializer.
  Value* AddInitializer(const std::string& name, Tensor tensor);
  // Null when `value` is no initializer.
  const Tensor* Initializer(const Value* value) const;
  const std::unordered_map<const Value*, Tensor>& initializers() const { return initializers_; }
  void RemoveInitializer(const Value* value) { initializers_.erase(value); }
  bool IsGraphInput(const Value* value) const;
  bool IsGraphOutput(const Value* value) const;
  // Removes values that nothing makes, reads or exports.
  void RemoveUnusedValues();

  // A deep copy (tensors' bytes are shared). For a subgraph, `parent` is the copy's parent. An
  // outer value becomes what `mapping`, if given, has for it, and otherwise the value of its name
  // that `parent` sees. `mapping` receives old value -> new value for the values of this graph and
  // of its bodies.
  std::unique_ptr<Graph> Clone(Graph* parent = nullptr,
                               std::unordered_map<const Value*, Value*>* mapping = nullptr) const;

 private:
  friend class Node;
  void AddUse(Value* value, Node* node, int index);
  static void RemoveUse(Value* value, const Node* node, int index);

  std::string name_;
  Graph* parent_;
  std::shared_ptr<const OpDefSet> own_ops_;
  std::unordered_map<std::string, std::unique_ptr<Value>> values_;
  std::vector<Value*> value_order_;
  std::unordered_map<std::string, int> name_counters_;
  std::unordered_map<std::string, const Node*> node_names_;
  std::vector<std::unique_ptr<Node>> nodes_;
  std::vector<Value*> inputs_, outputs_;
  std::unordered_map<const Value*, Tensor> initializers_;
};

// A rewrite of a model (pass.h), and several in the order in which they run.
class Pass;
using PassList = std::vector<std::shared_ptr<Pass>>;

// A graph with what a file says around it. Move-only: Clone() copies the graph, too.
struct Model {
  Model() = default;
  Model(Model&&) = default;
  Model& operator=(Model&&) = default;

  std::shared_ptr<Graph> graph;
  // Domain -> version that the nodes' semantics follow after normalisation.
  std::map<std::string, int> opsets;
  int ir_version = 0;
  // Facts of the file about itself, which change nothing here; kept when it is written again.
  std::string producer, producer_version;  // the program that has made it
  std::string domain;                      // whose model it is, as a reversed name of a host
  int64_t version = 0;
  std::string description, graph_description;
  std::map<std::string, std::string> metadata;
  // The folder of its other files, whose names nodes carry; empty: none are allowed.
  std::string folder;

  Model Clone() const;

 private:
  Model(const Model&) = default;  // shares the graph; for Clone
};

}  // namespace caesura

#endif  // CAESURA_CORE_GRAPH_GRAPH_H_
