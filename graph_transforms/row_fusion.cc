// SPDX-License-Identifier: Apache-2.0
#include "graph_transforms/row_fusion.h"

#include <algorithm>
#include <queue>
#include <unordered_map>

#include "core/graph/node_metadata.h"
#include "graph_transforms/matching.h"
#include "graph_transforms/row_op.h"

namespace caesura {
namespace {

constexpr size_t kMaxMembers = 64;  // a tile must still fit into cache

struct Group {
  std::vector<Node*> members;  // in list order
  std::vector<Dim> rows;
  Phase phase;
};

class RowFusion : public Pass {
 public:
  const char* name() const override { return "row_fusion"; }

  Result<bool> Run(Model& model) override {
    Fuser fuser(*model.graph);
    return fuser.Run();
  }

 private:
  class Fuser {
   public:
    explicit Fuser(Graph& graph) : graph_(graph) {}

    bool Run() {
      int position = 0;
      for (const auto& node : graph_.nodes()) {
        position_[node.get()] = position++;
        if (IsFixed(*node)) fixed_.insert(node.get());
        if (auto op = AsRowOp(*node)) ops_.emplace(node.get(), *std::move(op));
      }
      for (const auto& node : graph_.nodes()) {
        if (ops_.count(node.get()) > 0) Place(node.get());
      }
      std::vector<Group*> built;
      for (auto& group : groups_) {
        if (group->members.size() > 1) built.push_back(group.get());
      }
      if (built.empty()) return false;
      std::vector<const Node*> order = Order();
      std::unordered_map<const Node*, const Node*> by_last;
      std::unordered_set<const Node*> gone;
      for (Group* group : built) {
        gone.insert(group->members.begin(), group->members.end());
        by_last[group->members.back()] = Build(*group);
      }
      std::vector<const Node*> final_order;
      for (const Node* node : order) {
        auto it = by_last.find(node);
        if (it != by_last.end()) {
          final_order.push_back(it->second);
        } else if (gone.count(node) == 0) {
          final_order.push_back(node);
        }
      }
      graph_.RemoveNodes(gone);
      graph_.RemoveUnusedValues();
      graph_.Reorder(final_order);
      return true;
    }

   private:
    Group* GroupOf(const Node* node) const {
      auto it = group_of_.find(node);
      return it == group_of_.end() ? nullptr : it->second;
    }

    // Whether all that it reads is made from initializers.
    bool IsFixed(const Node& node) const {
      return std::all_of(node.inputs().begin(), node.inputs().end(), [&](const Value* input) {
        if (input == nullptr) return true;
        if (input->producer() != nullptr) return fixed_.count(input->producer()) > 0;
        return graph_.Initializer(input) != nullptr && !graph_.IsGraphInput(input);
      });
    }

    // What must run before `node`, in this graph.
    const std::vector<Node*>& Before(const Node* node) {
      auto [it, fresh] = before_.try_emplace(node);
      if (!fresh) return it->second;
      auto add = [&](const Value* value) {
        if (value != nullptr && value->producer() != nullptr && value->graph() == &graph_) {
          it->second.push_back(value->producer());
        }
      };
      for (const Value* input : node->inputs()) add(input);
      for (const Value* input : Graph::ImplicitInputs(*node)) add(input);
      if (node->phase() != Phase::kOptimizer) return it->second;
      for (const Value* input :
           node->inputs()) {  // updates in place come after all who read the old value
        if (input == nullptr) continue;
        for (const Value::Use& use : input->uses()) {
          if (use.node != node && use.node->graph() == &graph_ &&
              position_[use.node] < position_[node]) {
            it->second.push_back(use.node);
          }
        }
      }
      return it->second;
    }

    // Joins the groups of the node's producers where rows agree and no path leaves a group and
    // comes back.
    void Place(Node* node) {
      groups_.push_back(std::make_unique<Group>(Group{{node}, ops_.at(node).rows, node->phase()}));
      Group* own = groups_.back().get();
      group_of_[node] = own;
      for (const Value* input : node->inputs()) {
        if (input == nullptr || input->producer() == nullptr) continue;
        Group* other = GroupOf(input->producer());
        if (other == nullptr || other == own || !(other->rows == own->rows) ||
            other->phase != own->phase)
          continue;
        if (fixed_.count(node) != fixed_.count(input->producer()) ||
            !MayBecomeOne(*node, *input->producer()))
          continue;
        // Sums over rows are there when all tiles have run: nobody in the group can read them.
        const auto& columns = ops_.at(input->producer()).columns;
        const auto& outputs = input->producer()->outputs();
        const auto which =
            static_cast<int>(std::find(outputs.begin(), outputs.end(), input) - outputs.begin());
        if (std::count(columns.begin(), columns.end(), which) > 0) continue;
        if (other->members.size() + own->members.size() > kMaxMembers || ComesBack(*own, *other))
          continue;
        for (Node* member : own->members) {
          other->members.push_back(member);
          group_of_[member] = other;
        }
        own->members.clear();
        std::sort(other->members.begin(), other->members.end(),
                  [&](const Node* a, const Node* b) { return position_[a] < position_[b]; });
        own = other;
      }
    }

    // Whether somebody outside of both groups needs a value of theirs and makes one that they need.
    bool ComesBack(const Group& a, const Group& b) {
      std::unordered_set<const Node*> seen;
      std::vector<const Node*> open;
      auto inside = [&](const Node* n) { return GroupOf(n) == &a || GroupOf(n) == &b; };
      auto push_before = [&](const Node* n, bool from_inside) {
        for (const Node* producer : Before(n)) {
          if (from_inside && inside(producer)) continue;
          if (seen.insert(producer).second) open.push_back(producer);
        }
      };
      int first = INT32_MAX;  // nothing that stands before both groups can need them
      for (const Group* group : {&a, &b})
        first = std::min(first, position_[group->members.front()]);
      for (const Group* group : {&a, &b}) {
        for (const Node* member : group->members) push_before(member, true);
      }
      while (!open.empty()) {
        const Node* node = open.back();
        open.pop_back();
        if (inside(node)) return true;
        const Group* group = GroupOf(node);
        const int last = group == nullptr ? position_[node] : position_[group->members.back()];
        if (last < first) continue;
        if (group == nullptr) {
          push_before(node, false);
        } else {
          for (const Node* member : group->members) push_before(member, false);
        }
      }
      return false;
    }

    // Nodes in an order in which each group can stand where its last member stands.
    std::vector<const Node*> Order() {
      auto unit = [&](const Node* node) -> const Node* {
        const Group* group = GroupOf(node);
        return group == nullptr ? node : group->members.back();
      };
      std::unordered_map<const Node*, std::unordered_set<const Node*>> after;
      std::unordered_map<const Node*, int> waits;
      const Node* yield = nullptr;
      auto edge = [&](const Node* from, const Node* to) {
        if (from != to && after[from].insert(to).second) ++waits[to];
      };
      for (const auto& node : graph_.nodes()) {
        const Node* to = unit(node.get());
        waits.try_emplace(to, 0);
        for (const Node* producer : Before(node.get())) edge(unit(producer), to);
        if (!node->Is("YieldOp", kCaesuraDomain)) continue;
        if (yield != nullptr) edge(yield, to);  // yields keep their order
        yield = to;
      }
      auto later = [&](const Node* a, const Node* b) { return position_[a] > position_[b]; };
      std::priority_queue<const Node*, std::vector<const Node*>, decltype(later)> ready(later);
      for (const auto& [node, count] : waits) {
        if (count == 0) ready.push(node);
      }
      std::vector<const Node*> order;
      while (!ready.empty()) {
        const Node* node = ready.top();
        ready.pop();
        order.push_back(node);
        for (const Node* next : after[node]) {
          if (--waits[next] == 0) ready.push(next);
        }
      }
      return order;
    }

    // The FusedRows node in the members' place; they are left without outputs.
    Node* Build(const Group& group) {
      auto body = std::make_shared<Graph>("rows", &graph_);
      std::unordered_map<const Value*, Value*> inside;
      std::vector<Value*> inputs, outputs;
      std::vector<int64_t> columns;
      auto take = [&](Value* value) -> Value* {
        if (value == nullptr) return nullptr;
        auto [it, fresh] = inside.try_emplace(value, nullptr);
        if (!fresh) return it->second;
        const Tensor* constant = graph_.Initializer(value);
        if (constant != nullptr && !IsFloating(constant->dtype()) &&
            constant->shape().rank() <= 1) {  // axes and the like
          it->second = body->AddInitializer(value->name(), *constant);
        } else {
          it->second = body->AddInput(value->name(), value->type());
          inputs.push_back(value);
        }
        return it->second;
      };
      std::unordered_set<const Node*> members(group.members.begin(), group.members.end());
      std::string ops;
      for (Node* member : group.members) {
        std::vector<Value*> reads, writes;
        for (Value* input : member->inputs()) reads.push_back(take(input));
        const std::vector<int>& sums = ops_.at(member).columns;
        const std::vector<Value*> released = graph_.ReleaseOutputs(member);
        for (size_t i = 0; i < released.size(); ++i) {
          Value* output = released[i];
          writes.push_back(nullptr);
          const bool is_sum = std::count(sums.begin(), sums.end(), static_cast<int>(i)) > 0;
          if (output == nullptr) continue;
          writes.back() = inside[output] = body->AddValue(output->name(), output->type());
          const bool read_outside =
              std::any_of(output->uses().begin(), output->uses().end(),
                          [&](const Value::Use& use) { return members.count(use.node) == 0; });
          if (!read_outside && !graph_.IsGraphOutput(output)) continue;
          if (is_sum) columns.push_back(static_cast<int64_t>(outputs.size()));
          outputs.push_back(output);
          body->AddOutput(writes.back());
        }
        Node* copy = body->AddNode(member->op_type(), std::move(reads), std::move(writes),
                                   member->attributes(), member->domain(), member->name());
        copy->set_since_version(member->since_version());
        CopyMetadata(*member, copy);
        ops += (ops.empty() ? "" : "+") + member->op_type();
      }
      Node* fused = graph_.AddNode("FusedRows", std::move(inputs), std::move(outputs),
                                   {{"body", body}, {"column_outputs", columns}, {"ops", ops}},
                                   kCaesuraDomain, group.members.back()->name() + ".rows");
      CopyMetadata(*group.members.back(), fused);
      return fused;
    }

    Graph& graph_;
    std::unordered_map<const Node*, int> position_;
    std::unordered_map<const Node*, RowOp> ops_;
    std::unordered_set<const Node*> fixed_;
    std::vector<std::unique_ptr<Group>> groups_;
    std::unordered_map<const Node*, Group*> group_of_;
    std::unordered_map<const Node*, std::vector<Node*>> before_;
  };
};

}  // namespace

std::shared_ptr<Pass> MakeRowFusionPass() { return std::make_shared<RowFusion>(); }

}  // namespace caesura
