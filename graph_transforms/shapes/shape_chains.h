// SPDX-License-Identifier: Apache-2.0
// The CPU fallback goes by these facts: who reads each value of a graph and its bodies, and where;
// which values look like shapes, and which nodes may run on the host in place of a device. Private
// to graph_transforms.
#ifndef CAESURA_GRAPH_TRANSFORMS_SHAPES_SHAPE_CHAINS_H_
#define CAESURA_GRAPH_TRANSFORMS_SHAPES_SHAPE_CHAINS_H_

#include <string>
#include <unordered_map>
#include <unordered_set>
#include <utility>
#include <vector>

#include "core/plan/placement.h"

namespace caesura {

inline constexpr int64_t kMaxShapeElements = 64;

// Empty when the value looks like a shape, an axis, a size or a condition: a tensor of integers or
// bools of at most 64 elements; of an unknown number only where its rank is 0 or 1. Otherwise what
// speaks against it.
std::string WhyNoShape(const Value* value);

// One place where a value is read.
struct ValueRead {
  Node* node;     // null: an output of `graph`
  int index;      // of the node's inputs, or of the graph's outputs
  Graph* graph;   // where it is read: the value's own, or one inside
  bool anywhere;  // handed on without a look (a yield, the start of a loop)
  bool on_host;   // otherwise, where it is needed
};

// The results of a control-flow node (and, for a loop, its states): one place for all of it.
struct BodyResult {
  Node* owner;
  std::vector<Value*> results;  // the node's output and the body's input, as far as they are there
  // The values that they come from (outputs of bodies, the start of a loop), and the graphs that
  // hand it on.
  std::vector<std::pair<Value*, Graph*>> sources;
};

// Copies in a run of one graph. Constants do not count: they are copied once for all runs.
struct CopyCount {
  int to_host = 0, to_device = 0;
};

// The facts are those of the graph as it is when they are gathered: of no use once it is changed.
class ShapeChains {
 public:
  // `device_inputs`: names of graph inputs that come on the device. `keep`: names of nodes that
  // stay where they are.
  ShapeChains(Graph& graph, const ProviderList& providers,
              const std::unordered_set<std::string>& device_inputs,
              const std::unordered_set<std::string>& keep);

  // The graph and its bodies, each before those inside of it.
  const std::vector<Graph*>& graphs() const { return graphs_; }
  // The values of a graph's nodes and its inputs, makers before readers.
  const std::vector<Value*>& values(const Graph* graph) const { return values_.at(graph); }
  // All nodes, makers before readers.
  const std::vector<Node*>& nodes() const { return nodes_; }
  const std::vector<ValueRead>& reads(const Value* value) const;
  const std::vector<BodyResult>& body_results() const { return body_results_; }
  const ExecutionProvider& host() const { return *host_; }
  // As placement has it, by graph in the order of graphs().
  std::vector<CopyCount> Copies() const;

  // True if placement has the value on the host; constants count as there.
  bool IsOnHost(const Value* value) const { return placement_.DeviceOf(value) == 0; }
  static bool IsConstant(const Value* value) {
    return value->graph()->Initializer(value) != nullptr;
  }
  bool RunsOnHost(const Node& node) const { return provider_of_.at(&node)->device().is_host(); }
  // True if the node's provider reads input `i` on the host.
  bool ReadsOnHost(const Node& node, int i) const;
  // Empty when the node may run on the host in place of its device; otherwise why not.
  const std::string& WhyNotMovable(const Node& node) const { return why_not_movable_.at(&node); }
  bool IsMovable(const Node* node) const { return node != nullptr && WhyNotMovable(*node).empty(); }

 private:
  void Walk(Graph& graph);
  void AddReads(Node& node);
  void AddBodies(Node& node);
  std::string Examine(const Node& node, const std::unordered_set<std::string>& keep) const;

  Placement placement_;
  const ExecutionProvider* host_ = nullptr;
  std::vector<Graph*> graphs_;
  std::unordered_map<const Graph*, std::vector<Value*>> values_;
  std::vector<Node*> nodes_;
  std::unordered_map<const Value*, std::vector<ValueRead>> reads_;
  std::vector<BodyResult> body_results_;
  std::unordered_map<const Node*, const ExecutionProvider*> provider_of_;
  std::unordered_map<const Node*, std::string> why_not_movable_;
};

}  // namespace caesura

#endif  // CAESURA_GRAPH_TRANSFORMS_SHAPES_SHAPE_CHAINS_H_
