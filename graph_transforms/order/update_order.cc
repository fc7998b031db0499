// SPDX-License-Identifier: Apache-2.0
#include "graph_transforms/order/update_order.h"

#include <algorithm>
#include <unordered_map>
#include <unordered_set>
#include <utility>

#include "graph_transforms/order/node_order.h"

namespace caesura {
namespace {

// -1 where the type does not tell.
int64_t BytesOf(const ValueType& type) {
  if (!type.is_tensor() || !type.shape) return -1;
  int64_t bytes = static_cast<int64_t>(DTypeSize(type.dtype));
  for (const Dim& dim : *type.shape) {
    if (!dim.known()) return -1;
    bytes *= dim.value;
  }
  return bytes;
}

// A node's key is twice the position of the node that it shall stand beside, and one more to stand
// after it in any case; nodes of one key keep their order.
class NodeOrder {
 protected:
  // `written`: names of values whose bytes are overwritten while the graph runs.
  NodeOrder(Graph& graph, const std::vector<std::string>& written) : graph_(graph) {
    int position = 0;
    for (const auto& node : graph.nodes()) keys_[node.get()] = 2 * position++;
    for (const std::string& name : written) written_.insert(graph.FindValue(name));
    for (const auto& node : graph.nodes()) {
      if (node->phase() == Phase::kOptimizer || !MayBeView(*node)) continue;
      for (const Value* output : node->outputs()) {
        if (output != nullptr && HoldsNumbers(*output)) written_.insert(output);
      }
    }
  }

  static bool HoldsNumbers(const Value& value) {
    return kFloatTypes.Contains(value.dtype()) || value.dtype() == DType::kUndefined;
  }

  // True if outputs may lie in bytes that an update writes: a view has its numbers from there
  // only.
  bool MayBeView(const Node& node) const {
    if (node.Is("CastLike")) return written_.count(node.input(0)) > 0;  // the other input is a type
    const auto holds_numbers = [](const Value* input) {
      return input != nullptr && HoldsNumbers(*input);
    };
    const auto& inputs = node.inputs();
    const auto only = std::find_if(inputs.begin(), inputs.end(), holds_numbers);
    return only != inputs.end() && written_.count(*only) > 0 &&
           std::count_if(only, inputs.end(), holds_numbers) == 1;
  }

  int End() const { return 2 * static_cast<int>(graph_.nodes().size()); }

  // The last node but for updates that reads the value or a view of it. Readers in bodies count as
  // the very end.
  int LastReader(const Value* value) const {
    int last = 0;
    for (const Value::Use& use : value->uses()) {
      if (use.node->graph() != &graph_) return End();
      if (use.node->phase() == Phase::kOptimizer) continue;
      last = std::max(last, keys_.at(use.node));
      for (const Value* output : use.node->outputs()) {
        if (output != nullptr && written_.count(output) > 0)
          last = std::max(last, LastReader(output));
      }
    }
    return last;
  }

  int AfterProducers(const Node& node) const {
    int key = 0;
    for (const Value* input : node.inputs()) {
      if (input != nullptr && input->producer() != nullptr)
        key = std::max(key, keys_.at(input->producer()));
    }
    return key;
  }

  Graph& graph_;
  std::unordered_map<const Node*, int> keys_;
  std::unordered_set<const Value*> written_;  // and what may be views of it
};

class UpdateOrder : NodeOrder {
 public:
  UpdateOrder(Graph& graph, const std::vector<std::string>& parameters)
      : NodeOrder(graph, parameters) {}

  bool Apply() {
    for (const auto& node : graph_.nodes()) {
      if (HasItsPlace(*node)) continue;
      if (node->phase() == Phase::kOptimizer) keys_[node.get()] = AfterReaders(*node);
      else if (MayMove(*node) && ReadsAlone(*node) && Grows(*node) <= 0)
        keys_[node.get()] = AfterProducers(*node);
    }
    for (auto it = graph_.nodes().rbegin(); it != graph_.nodes().rend(); ++it) {
      const Node& node = **it;
      if (node.phase() != Phase::kBackward || !MayMove(node)) continue;
      const int first = FirstReader(node);
      const int64_t grows = Grows(node);
      const bool smaller = grows != kUnknown && (grows > 0 || (grows == 0 && ReadsAlone(node)));
      if (first > keys_.at(&node) && smaller) keys_[&node] = first;
    }
    return SortNodes(graph_, keys_);
  }

 private:
  static constexpr int64_t kUnknown = INT64_MAX;

  // Collectives are under way while other nodes run.
  static bool HasItsPlace(const Node& node) {
    return node.Is("CollectiveStart", kCaesuraDomain) || node.Is("CollectiveWait", kCaesuraDomain);
  }

  int AfterReaders(const Node& update) const {
    int key = AfterProducers(update);
    for (const Value* input : update.inputs()) {
      if (input != nullptr && written_.count(input) > 0) key = std::max(key, LastReader(input));
    }
    return key;
  }

  // End() where nobody reads it, or somebody in a body.
  int FirstReader(const Node& node) const {
    int first = End();
    for (const Value* output : node.outputs()) {
      if (output == nullptr) continue;
      for (const Value::Use& use : output->uses()) {
        first =
            std::min(first, use.node->graph() == &graph_ ? keys_.at(use.node) : keys_.at(&node));
      }
    }
    return first;
  }

  // Nothing of it is handed out or read in place of what an update writes, and all that it reads is
  // listed.
  bool MayMove(const Node& node) const {
    const auto outside = [&](const Value* value) {
      return value != nullptr && graph_.IsGraphOutput(value);
    };
    const auto written = [&](const Value* value) {
      return value != nullptr && written_.count(value) > 0;
    };
    return node.phase() == Phase::kBackward && node.Subgraphs().empty() &&
           std::none_of(node.outputs().begin(), node.outputs().end(), outside) &&
           std::none_of(node.inputs().begin(), node.inputs().end(), written);
  }

  bool ReadsAlone(const Node& node) const {
    bool any = false;
    for (const Value* input : node.inputs()) {
      if (input == nullptr || graph_.Initializer(input) != nullptr) continue;
      if (input->producer() == nullptr || input->uses().size() != 1 || graph_.IsGraphOutput(input))
        return false;
      any = true;
    }
    return any;
  }

  // Bytes of the outputs less those of the inputs that are computed or fed; kUnknown where types do
  // not tell.
  int64_t Grows(const Node& node) const {
    int64_t grows = 0;
    for (const Value* output : node.outputs()) {
      if (output == nullptr) continue;
      const int64_t bytes = BytesOf(output->type());
      if (bytes < 0) return kUnknown;
      grows += bytes;
    }
    for (const Value* input : node.inputs()) {
      if (input == nullptr || graph_.Initializer(input) != nullptr) continue;
      const int64_t bytes = BytesOf(input->type());
      if (bytes < 0) return kUnknown;
      grows -= bytes;
    }
    return grows;
  }
};

// Names of the graph inputs that a yield releases.
std::vector<std::string> ReleasedBy(const Node& node) {
  if (!node.Is("YieldOp", kCaesuraDomain)) return {};
  return node.Attr<std::vector<std::string>>("released_inputs", {});
}

std::vector<std::string> ReleasedInputs(const Graph& graph) {
  std::vector<std::string> names;
  for (const auto& node : graph.nodes()) {
    for (std::string& name : ReleasedBy(*node)) {
      if (graph.FindValue(name) != nullptr) names.push_back(std::move(name));
    }
  }
  return names;
}

class YieldOrder : NodeOrder {
 public:
  explicit YieldOrder(Graph& graph) : NodeOrder(graph, ReleasedInputs(graph)) {}

  bool Apply() {
    int least = 0;  // yields keep their order
    for (const auto& node : graph_.nodes()) {
      if (!node->Is("YieldOp", kCaesuraDomain)) continue;
      int& key = keys_.at(node.get());
      key = std::max(key, least);
      for (const std::string& name : ReleasedBy(*node)) {
        const Value* input = graph_.FindValue(name);
        if (input != nullptr && LastReader(input) > key) key = LastReader(input) + 1;
      }
      least = key;
    }
    return SortNodes(graph_, keys_);
  }
};

class YieldOrderPass : public Pass {
 public:
  const char* name() const override { return "yield_order"; }
  Result<bool> Run(Model& model) override { return YieldOrder(*model.graph).Apply(); }
};

class UpdateOrderPass : public Pass {
 public:
  explicit UpdateOrderPass(std::vector<std::string> parameters)
      : parameters_(std::move(parameters)) {}
  const char* name() const override { return "update_order"; }
  Result<bool> Run(Model& model) override { return UpdateOrder(*model.graph, parameters_).Apply(); }

 private:
  const std::vector<std::string> parameters_;
};

}  // namespace

std::shared_ptr<Pass> MakeUpdateOrderPass(std::vector<std::string> parameters) {
  return std::make_shared<UpdateOrderPass>(std::move(parameters));
}

std::shared_ptr<Pass> MakeYieldOrderPass() { return std::make_shared<YieldOrderPass>(); }

}  // namespace caesura
