// SPDX-License-Identifier: Apache-2.0
#include "core/graph/graph_check.h"

#include <algorithm>
#include <string_view>
#include <unordered_map>
#include <unordered_set>
#include <utility>
#include <vector>

namespace caesura {
namespace {

constexpr size_t kMaxFaults = 20;

struct HashOfRead {
  size_t operator()(const std::pair<const Value*, const Node*>& read) const {
    return std::hash<const Value*>()(read.first) * 31 + std::hash<const Node*>()(read.second);
  }
};

class GraphCheck {
 public:
  Status Run(const Graph& graph) {
    // Values around a body count as made.
    for (const Graph* outer = graph.parent(); outer != nullptr; outer = outer->parent()) {
      for (const Value* value : outer->Values()) made_.insert(value);
    }
    Visit(graph);
    CheckUses(graph);
    if (faults_.empty()) return {};
    std::string text = "the graph breaks its rules:";
    for (const std::string& fault : faults_) text += "\n  " + fault;
    return Internal(text);
  }

 private:
  void Fault(const std::string& text) {
    if (faults_.size() < kMaxFaults) faults_.push_back(text);
  }

  void Visit(const Graph& graph) {
    const std::vector<Value*> values = graph.Values();
    existing_.insert(values.begin(), values.end());
    std::unordered_set<std::string_view> names;
    for (const Value* value : values) {
      if (value->graph() != &graph)
        Fault("'" + value->name() + "' says it belongs to another graph");
      if (!names.insert(value->name()).second)
        Fault("two values are named '" + value->name() + "'");
      if (graph.FindValue(value->name()) != value)
        Fault("'" + value->name() + "' is not found by its name");
    }
    MakeEnds(graph);
    std::unordered_set<std::string_view> node_names;
    for (const auto& node : graph.nodes()) {
      if (!node_names.insert(node->name()).second)
        Fault("two nodes are named '" + node->name() + "'");
      if (node->graph() != &graph) Fault(node->Label() + " says it belongs to another graph");
      VisitNode(*node, graph);
    }
    for (const Value* output : graph.outputs()) {
      if (output == nullptr) {
        Fault("graph '" + graph.name() + "' has an output that is null");
      } else if (!made_.count(output)) {
        Fault("graph '" + graph.name() + "' puts out '" + Describe(output) +
              "', which nothing makes");
      }
    }
  }

  void MakeEnds(const Graph& graph) {
    const std::unordered_set<const Value*> inputs(graph.inputs().begin(), graph.inputs().end());
    for (const Value* input : graph.inputs()) Make(input, "graph '" + graph.name() + "' as input");
    for (const auto& [value, tensor] : graph.initializers()) {
      if (!existing_.count(value)) {
        Fault("an initializer belongs to a value that is gone");
        continue;
      }
      if (!inputs.count(value)) Make(value, "an initializer");
      if (value->producer() != nullptr)
        Fault("initializer '" + value->name() + "' has a producer too");
      if (!tensor.defined()) Fault("initializer '" + value->name() + "' has no tensor");
    }
  }

  void Make(const Value* value, const std::string& maker) {
    if (value == nullptr || !existing_.count(value))
      return Fault(maker + " makes a value that does not exist");
    if (!made_.insert(value).second)
      Fault(maker + " makes '" + value->name() + "', which is made already");
  }

  void VisitNode(const Node& node, const Graph& graph) {
    for (size_t i = 0; i < node.inputs().size(); ++i) {
      const Value* input = node.inputs()[i];
      if (input == nullptr) continue;
      if (!made_.count(input)) {
        Fault(node.Label() + " reads '" + Describe(input) + "' before anything makes it");
        continue;
      }
      ++reads_[{input, &node}];
    }
    for (const Graph* body : node.Subgraphs()) {
      if (body->parent() != &graph) Fault("a body of " + node.Label() + " has another parent");
      Visit(*body);
    }
    for (const Value* output : node.outputs()) {
      if (output == nullptr) continue;
      Make(output, node.Label());
      if (existing_.count(output) && output->producer() != &node) {
        Fault("'" + output->name() + "' does not name " + node.Label() + " as its producer");
      }
    }
  }

  // A value that is gone must not be looked into.
  std::string Describe(const Value* value) const {
    return existing_.count(value) ? value->name() : "(a removed value)";
  }

  void CheckUses(const Graph& graph) {
    for (const Value* value : graph.Values()) {
      for (const Value::Use& use : value->uses()) {
        auto it = reads_.find({value, use.node});
        const bool real =
            it != reads_.end() && it->second > 0 && use.node->input(use.index) == value;
        if (real) {
          --it->second;
        } else {
          Fault("'" + value->name() + "' lists a use that no node has");
        }
      }
      if (value->producer() != nullptr && !IsOutputOf(value, *value->producer())) {
        Fault("'" + value->name() + "' names a producer that does not write it");
      }
    }
    for (const auto& node : graph.nodes()) {
      for (const Value* input : node->inputs()) {
        auto it = input == nullptr ? reads_.end() : reads_.find({input, node.get()});
        if (it != reads_.end() && it->second > 0 && existing_.count(input)) {
          Fault("'" + input->name() + "' does not list its use by " + node->Label());
        }
      }
      for (const Graph* body : node->Subgraphs()) CheckUses(*body);
    }
  }

  static bool IsOutputOf(const Value* value, const Node& node) {
    return std::find(node.outputs().begin(), node.outputs().end(), value) != node.outputs().end();
  }

  std::unordered_set<const Value*> existing_, made_;
  std::unordered_map<std::pair<const Value*, const Node*>, int, HashOfRead> reads_;
  std::vector<std::string> faults_;
};

}  // namespace

Status CheckGraph(const Graph& graph) { return GraphCheck().Run(graph); }

}  // namespace caesura
