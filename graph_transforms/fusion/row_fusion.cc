// SPDX-License-Identifier: Apache-2.0
// Groups of nodes that each treat rows of the same number become FusedRows nodes: their body runs
// tile by tile, while the rows are in cache (core/ops/fused_rows).
#include "graph_transforms/fusion/row_fusion.h"

#include <algorithm>
#include <unordered_map>

#include "core/graph/convex_groups.h"
#include "core/graph/graph_edit.h"
#include "graph_transforms/fusion/row_op.h"
#include "graph_transforms/matching.h"

namespace caesura {
namespace {

constexpr size_t kMaxMembers = 64;  // a tile must still fit into cache

using RowOps = std::unordered_map<const Node*, RowOp>;

bool SumsOverRows(const RowOp& op, size_t output) {
  return std::count(op.columns.begin(), op.columns.end(), static_cast<int>(output)) > 0;
}

// Nodes that read only what is made from initializers.
std::unordered_set<const Node*> FixedNodes(const Graph& graph) {
  std::unordered_set<const Node*> fixed;
  auto is_fixed = [&](const Value* input) {
    if (input == nullptr) return true;
    if (input->producer() != nullptr) return fixed.count(input->producer()) > 0;
    return graph.Initializer(input) != nullptr && !graph.IsGraphInput(input);
  };
  for (const auto& node : graph.nodes()) {
    if (std::all_of(node->inputs().begin(), node->inputs().end(), is_fixed))
      fixed.insert(node.get());
  }
  return fixed;
}

// The body of a FusedRows node while its members move into it.
class RowsBody {
 public:
  RowsBody(Graph& graph, const std::vector<Node*>& members, const RowOps& ops)
      : graph_(graph),
        ops_(ops),
        members_(members.begin(), members.end()),
        body_(std::make_shared<Graph>("rows", &graph)) {
    for (Node* member : members) Add(member);
  }

  // The node in the members' place, named after the last of them.
  NodeSpec Spec(const Node& last) && {
    return {"FusedRows",         std::move(inputs_),
            std::move(outputs_), {{"body", body_}, {"column_outputs", columns_}, {"ops", names_}},
            kCaesuraDomain,      last.name() + ".rows"};
  }

 private:
  Value* Take(Value* value) {
    if (value == nullptr) return nullptr;
    auto [it, fresh] = inside_.try_emplace(value, nullptr);
    if (!fresh) return it->second;
    const Tensor* constant = graph_.Initializer(value);
    if (constant != nullptr && !IsFloating(constant->dtype()) &&
        constant->shape().rank() <= 1) {  // axes and the like
      it->second = body_->AddInitializer(value->name(), *constant);
    } else {
      it->second = body_->AddInput(value->name(), value->type());
      inputs_.push_back(value);
    }
    return it->second;
  }

  bool IsReadOutside(const Value* value) const {
    return graph_.IsGraphOutput(value) ||
           std::any_of(value->uses().begin(), value->uses().end(),
                       [&](const Value::Use& use) { return members_.count(use.node) == 0; });
  }

  // Copies the member, which is left without outputs.
  void Add(Node* member) {
    std::vector<Value*> reads, writes;
    for (Value* input : member->inputs()) reads.push_back(Take(input));
    const std::vector<Value*> released = graph_.ReleaseOutputs(member);
    for (size_t i = 0; i < released.size(); ++i) {
      Value* output = released[i];
      writes.push_back(output == nullptr ? nullptr
                                         : body_->AddValue(output->name(), output->type()));
      if (output == nullptr) continue;
      inside_[output] = writes.back();
      if (!IsReadOutside(output)) continue;
      if (SumsOverRows(ops_.at(member), i))
        columns_.push_back(static_cast<int64_t>(outputs_.size()));
      outputs_.push_back(output);
      body_->AddOutput(writes.back());
    }
    body_->CloneNode(*member, std::move(reads), std::move(writes));
    names_ += (names_.empty() ? "" : "+") + member->op_type();
  }

  Graph& graph_;
  const RowOps& ops_;
  const std::unordered_set<const Node*> members_;
  std::shared_ptr<Graph> body_;
  std::unordered_map<const Value*, Value*> inside_;
  std::vector<Value*> inputs_, outputs_;
  std::vector<int64_t> columns_;  // outputs that are sums over rows
  std::string names_;
};

class RowFusion : public Pass {
 public:
  explicit RowFusion(bool for_device) : for_device_(for_device) {}
  const char* name() const override { return "row_fusion"; }

  Result<bool> Run(Model& model) override {
    Graph& graph = *model.graph;
    RowOps ops;
    for (const auto& node : graph.nodes()) {
      if (auto op = AsRowOp(*node, for_device_)) ops.emplace(node.get(), *std::move(op));
    }
    const std::vector<std::vector<Node*>> groups = Group(graph, ops);
    if (groups.empty()) return false;
    GraphEdit edit(graph);
    for (const std::vector<Node*>& members : groups) {
      const Node& last = *members.back();
      edit.InsertBefore(last, RowsBody(graph, members, ops).Spec(last));
      for (const Node* member : members) edit.Remove(*member);
    }
    edit.Finish();
    graph.RemoveUnusedValues();
    return true;
  }

 private:
  // True if the node may go through cache with the node that makes its input `value`.
  static bool MayShareTiles(const Node& node, const Value& value, const RowOps& ops,
                            const std::unordered_set<const Node*>& fixed) {
    const Node& producer = *value.producer();
    const auto made_by = ops.find(&producer);
    if (made_by == ops.end() || !(made_by->second.rows == ops.at(&node).rows)) return false;
    if (producer.phase() != node.phase() || fixed.count(&node) != fixed.count(&producer))
      return false;
    // Sums over rows are there after all tiles have run: no node of the group can read them.
    const auto& outputs = producer.outputs();
    const auto which = std::find(outputs.begin(), outputs.end(), &value) - outputs.begin();
    return !SumsOverRows(made_by->second, static_cast<size_t>(which)) &&
           MayBecomeOne(node, producer);
  }

  // The groups of more than one node. Puts the graph into an order in which each group can stand
  // where its last member stands.
  static std::vector<std::vector<Node*>> Group(Graph& graph, const RowOps& ops) {
    const std::unordered_set<const Node*> fixed = FixedNodes(graph);
    std::unordered_map<const Node*, int> position;
    ConvexGroups convex(graph);
    for (const auto& node : graph.nodes()) {
      const auto at = static_cast<int>(position.size());
      position.emplace(node.get(), at);
      for (const Value* input : node->inputs()) {
        if (ops.count(node.get()) == 0 || input == nullptr || input->producer() == nullptr ||
            !MayShareTiles(*node, *input, ops, fixed))
          continue;
        const int from = position.at(input->producer());
        if (convex.members(from).size() + convex.members(at).size() <= kMaxMembers)
          convex.Join(from, at);
      }
    }
    std::vector<std::vector<Node*>> groups;
    for (int i = 0; i < static_cast<int>(position.size()); ++i) {
      const std::vector<int>& members = convex.members(i);
      if (members.size() == 1 || members.front() != i) continue;
      std::vector<Node*>& group = groups.emplace_back();
      for (int member : members) group.push_back(graph.nodes()[member].get());
    }
    if (!groups.empty()) graph.Reorder(convex.Order());
    return groups;
  }

  const bool for_device_;
};

}  // namespace

std::shared_ptr<Pass> MakeRowFusionPass(bool for_device) {
  return std::make_shared<RowFusion>(for_device);
}

}  // namespace caesura
