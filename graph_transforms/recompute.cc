// SPDX-License-Identifier: Apache-2.0
#include "graph_transforms/recompute.h"

#include <algorithm>
#include <unordered_map>

#include "core/base/status_macros.h"
#include "core/graph/graph_edit.h"
#include "core/graph/op_schema.h"
#include "core/graph/op_def.h"
#include "graph_transforms/simplify/dead_node_elimination.h"

namespace caesura {
namespace {

// --- what is worth it ---

const Shape& ShapeOf(const ExecutionPlan& plan, const PlanStep& step, uint32_t argument) {
  return plan.values()[plan.argument_values()[step.first_argument + argument]].shape;
}

// Multiply-adds of a product whose rows of the second factor are as long as those of `a`.
double ProductMultiplyAdds(const Node& node, const Shape& a, double elements) {
  if (a.rank() == 0) return elements;
  const bool transposed = node.Attr<int64_t>("transA", 0) != 0 && a.rank() > 1;
  return elements * static_cast<double>(a[a.rank() - (transposed ? 2 : 1)]);
}

// Multiply-adds of the ops that have more of them than elements.
double MultiplyAdds(const ExecutionPlan& plan, const PlanStep& step) {
  const Shape& y = ShapeOf(plan, step, step.input_count);
  const auto elements = static_cast<double>(y.elements());
  switch (OpDefOf(*step.node).work) {
    case OpDef::Work::kProduct:
      return ProductMultiplyAdds(*step.node, ShapeOf(plan, step, 0), elements);
    case OpDef::Work::kConvolution:
      if (y.rank() < 2 || y[1] == 0) return 0;
      return elements * static_cast<double>(ShapeOf(plan, step, 1).elements()) /
             static_cast<double>(y[1]);
    case OpDef::Work::kAttention: {
      const Shape& k = ShapeOf(plan, step, 1);
      return 2 * elements * static_cast<double>(k[k.rank() - 2]);
    }
    default: return 0;
  }
}

// Bytes that the step moves, and its multiply-adds: a core takes about as many of them in the time
// that a byte takes.
double Cost(const ExecutionPlan& plan, const PlanStep& step) {
  constexpr double kMultiplyAddsAByte = 8;
  double bytes = 0;
  for (uint32_t a = 0; a < step.input_count + step.output_count; ++a) {
    const PlannedValue& value = plan.values()[plan.argument_values()[step.first_argument + a]];
    bytes +=
        static_cast<double>(static_cast<size_t>(value.shape.elements()) * DTypeSize(value.dtype));
  }
  return bytes + MultiplyAdds(plan, step) / kMultiplyAddsAByte;
}

// False for what other ranks or the caller take part in: it happens once.
bool MayRunAgain(const Node& node) {
  const OpDef* spec = FindOwnOp(node);
  return spec == nullptr || spec->is_deterministic;
}

bool IsBackward(const PlanStep& step) { return step.node->phase() == Phase::kBackward; }

// For each buffer the last backward step that reads it; -1: none.
std::vector<int> LastBackwardReads(const ExecutionPlan& plan) {
  std::vector<int> out(plan.buffers().size(), -1);
  for (int s = 0; s < static_cast<int>(plan.steps().size()); ++s) {
    const PlanStep& step = plan.steps()[s];
    if (!IsBackward(step)) continue;
    for (uint32_t a = 0; a < step.input_count; ++a)
      out[plan.arguments()[step.first_argument + a]] = s;
  }
  return out;
}

}  // namespace

KeptNodes FindKeptNodes(const ExecutionPlan& plan) {
  KeptNodes out;
  const std::vector<int> reads = LastBackwardReads(plan);
  std::unordered_set<const Node*> stepped;
  std::vector<std::pair<double, std::string>> found;  // cost of a byte
  for (const PlanStep& step : plan.steps()) {
    stepped.insert(step.node);
    if (step.kind != PlanStep::Kind::kCompute || step.node->phase() != Phase::kForward ||
        !step.bodies.empty() || !MayRunAgain(*step.node))
      continue;
    size_t kept = 0;
    for (uint32_t a = 0; a < step.output_count; ++a) {
      const uint32_t id = plan.arguments()[step.first_argument + step.input_count + a];
      const PlannedBuffer& buffer = plan.buffers()[id];
      if (buffer.kind == PlannedBuffer::Kind::kArena && reads[id] >= 0) kept += buffer.bytes;
    }
    if (kept > 0)
      found.emplace_back(Cost(plan, step) / static_cast<double>(kept), step.node->name());
  }
  std::stable_sort(found.begin(), found.end(),
                   [](const auto& a, const auto& b) { return a.first < b.first; });
  for (auto& [cost, name] : found) out.nodes.push_back(std::move(name));
  for (const auto& node : plan.graph().nodes()) {
    if (stepped.count(node.get()) == 0) out.views.insert(node->name());
  }
  return out;
}

// --- the pass ---

namespace {

class RecomputeRewriter {
 public:
  RecomputeRewriter(Graph& graph, const std::unordered_set<std::string>& nodes,
                    const std::unordered_set<std::string>& views)
      : graph_(graph), edit_(graph), nodes_(nodes), views_(views) {}

  bool Run() {
    std::vector<Node*> nodes;
    for (const auto& node : graph_.nodes()) {
      position_[node.get()] = static_cast<int>(nodes.size());
      nodes.push_back(node.get());
    }
    for (Node* node : nodes) {
      reader_ = node;
      for (size_t i = 0; node->phase() == Phase::kBackward && i < node->inputs().size(); ++i) {
        Value* again = Again(node->inputs()[i]);
        if (again != node->inputs()[i]) node->SetInput(static_cast<int>(i), again);
      }
    }
    return edit_.Finish();
  }

 private:
  // True if an update in place, ahead of here, changes a value that the node reads.
  bool ReadsUpdated(const Node& node) const {
    return std::any_of(node.inputs().begin(), node.inputs().end(), [&](const Value* input) {
      if (input == nullptr || graph_.Initializer(input) == nullptr) return false;
      return std::any_of(input->uses().begin(), input->uses().end(), [&](const Value::Use& use) {
        auto at = position_.find(use.node);
        return use.node->phase() == Phase::kOptimizer && at != position_.end() &&
               at->second < position_.at(reader_);
      });
    });
  }

  // The value computed again for backward nodes from here on; `value` itself where it is kept.
  Value* Again(Value* value) {
    Node* node = value == nullptr ? nullptr : value->producer();
    if (node == nullptr || node->graph() != &graph_ || node->phase() != Phase::kForward)
      return value;
    if (auto it = again_.find(value); it != again_.end()) return it->second;
    const bool chosen = nodes_.count(node->name()) > 0;
    if (!chosen && views_.count(node->name()) == 0) return value;
    if (chosen && ReadsUpdated(*node)) return value;
    std::vector<Value*> inputs;
    for (Value* input : node->inputs()) inputs.push_back(Again(input));
    if (!chosen && inputs == node->inputs()) return value;
    Copy(*node, std::move(inputs));
    return again_.at(value);
  }

  void Copy(const Node& node, std::vector<Value*> inputs) {
    std::vector<Value*> outputs;
    for (Value* output : node.outputs()) {
      outputs.push_back(
          output == nullptr ? nullptr : graph_.AddValue(output->name() + "/again", output->type()));
      if (output != nullptr) again_[output] = outputs.back();
    }
    Node* copy = graph_.CloneNode(node, std::move(inputs), std::move(outputs),
                                  graph_.UniqueName(node.name() + "/again"));
    if (!copy->HasAttribute("random_stream")) copy->SetAttribute("random_stream", node.name());
    copy->set_phase(Phase::kBackward);
    edit_.MoveBefore(*copy, *reader_);
  }

  Graph& graph_;
  GraphEdit edit_;
  const std::unordered_set<std::string>&nodes_, &views_;
  const Node* reader_ = nullptr;  // the backward node that values are computed again for
  std::unordered_map<const Node*, int> position_;
  std::unordered_map<const Value*, Value*> again_;
};

class Recompute : public Pass {
 public:
  Recompute(std::unordered_set<std::string> nodes, std::unordered_set<std::string> views)
      : nodes_(std::move(nodes)), views_(std::move(views)) {}
  const char* name() const override { return "recompute"; }
  Result<bool> Run(Model& model) override {
    return RecomputeRewriter(*model.graph, nodes_, views_).Run();
  }

 private:
  const std::unordered_set<std::string> nodes_, views_;
};

Result<std::shared_ptr<const ExecutionPlan>> PlanWith(const ExecutionPlan& plan,
                                                      const KeptNodes& kept, size_t count) {
  Model model;
  model.graph = plan.graph().Clone();
  std::unordered_set<std::string> nodes(kept.nodes.begin(),
                                        kept.nodes.begin() + static_cast<std::ptrdiff_t>(count));
  const PassList passes = {MakeRecomputePass(std::move(nodes), kept.views),
                           MakeDeadNodeEliminationPass()};
  RETURN_IF_ERROR(RunPasses(passes, model).status());
  PlanOptions options = plan.options();
  for (const Value*& parameter : options.parameters)
    parameter = model.graph->FindValue(parameter->name());
  return ExecutionPlan::Create(model.graph, plan.feeds(), plan.providers(), options);
}

}  // namespace

std::shared_ptr<Pass> MakeRecomputePass(std::unordered_set<std::string> nodes,
                                        std::unordered_set<std::string> views) {
  return std::make_shared<Recompute>(std::move(nodes), std::move(views));
}

// --- how much ---

Result<std::shared_ptr<const ExecutionPlan>> PlanWithin(
    const std::shared_ptr<const ExecutionPlan>& plan, size_t budget) {
  if (plan->arena_bytes() <= budget) return plan;
  const KeptNodes kept = FindKeptNodes(*plan);
  size_t least = plan->arena_bytes();
  std::shared_ptr<const ExecutionPlan> found;
  auto try_with = [&](size_t count) -> Result<bool> {
    ASSIGN_OR_RETURN(std::shared_ptr<const ExecutionPlan> made, PlanWith(*plan, kept, count));
    least = std::min(least, made->arena_bytes());
    if (made->arena_bytes() > budget) return false;
    found = std::move(made);
    return true;
  };
  // More recomputed takes less memory, but what it reads must be kept longer: all of it need not be
  // best.
  size_t low = 0, high = 0;
  for (size_t parts = 4; parts > 0 && high == 0; --parts) {
    const size_t count = kept.nodes.size() * parts / 4;
    ASSIGN_OR_RETURN(const bool fits, try_with(count));
    if (fits) high = count;
  }
  while (high > low + 1) {
    const size_t count = low + (high - low) / 2;
    ASSIGN_OR_RETURN(const bool fits, try_with(count));
    (fits ? high : low) = count;
  }
  if (found != nullptr) return found;
  return OutOfMemory("memory_budget: expected at least " + std::to_string(least) +
                     " bytes for a step on these feeds (" + std::to_string(plan->arena_bytes()) +
                     " without recomputation), got " + std::to_string(budget));
}

}  // namespace caesura
