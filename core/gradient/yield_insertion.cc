// SPDX-License-Identifier: Apache-2.0
#include "core/gradient/yield_insertion.h"

#include <algorithm>
#include <unordered_map>
#include <unordered_set>

#include "core/base/status_macros.h"
#include "core/graph/graph_edit.h"
#include "core/gradient/gradient_builder.h"
#include "core/gradient/gradient_path.h"

namespace caesura {
namespace {

// The values to differentiate by: inputs in the graph's order, then parameters.
Result<std::vector<Value*>> FindXs(const Graph& graph, const ModuleGraphOptions& options) {
  std::vector<Value*> xs;
  const std::unordered_set<std::string> wanted(options.inputs.begin(), options.inputs.end());
  for (Value* input : graph.inputs()) {
    if (wanted.count(input->name())) xs.push_back(input);
  }
  if (xs.size() != wanted.size()) {
    for (const std::string& name : options.inputs) {
      const Value* value = graph.FindValue(name);
      if (value == nullptr || !graph.IsGraphInput(value))
        return InvalidArgument("the graph has no input '" + name + "'");
    }
  }
  for (const std::string& name : options.parameters) {
    Value* value = graph.FindValue(name);
    const bool there =
        value != nullptr && (graph.Initializer(value) != nullptr || graph.IsGraphInput(value));
    if (!there) return InvalidArgument("the graph has no parameter '" + name + "'");
    if (std::find(xs.begin(), xs.end(), value) != xs.end())
      return InvalidArgument("'" + name + "' is named twice");
    xs.push_back(value);
  }
  return xs;
}

class ModuleBuilder {
 public:
  ModuleBuilder(Graph& graph, std::vector<Value*> xs, const std::vector<Value*>& extra)
      : graph_(graph), xs_(std::move(xs)), extra_(extra), ys_(graph.outputs()) {}

  Result<ModuleGraph> Build();

 private:
  void AddYield();
  std::vector<int64_t> FullShapeOutputs() const;
  void SetOutputs(const std::vector<Value*>& dxs);

  Graph& graph_;
  std::vector<Value*> xs_;
  const std::vector<Value*>& extra_;
  const std::vector<Value*> ys_;
  ModuleGraph module_;
  std::vector<Value*> dys_;  // in the order of the yield's outputs
};

void ModuleBuilder::AddYield() {
  const gradient::GradientPath path(graph_, xs_, ys_, {});
  std::vector<int64_t> fixed;
  std::vector<std::string> names;
  for (size_t i = 0; i < ys_.size(); ++i) {
    names.push_back(ys_[i]->name());
    if (!path.Contains(ys_[i])) {
      fixed.push_back(static_cast<int64_t>(i));
      continue;
    }
    dys_.push_back(graph_.AddValue(graph_.UniqueName(ys_[i]->name() + "/dy"), ys_[i]->type()));
    module_.gradient_of.push_back(static_cast<int>(i));
  }
  std::vector<Value*> handed_out = ys_;
  for (Value* value : extra_) {
    fixed.push_back(static_cast<int64_t>(handed_out.size()));
    names.push_back(value->name());
    handed_out.push_back(value);
  }
  module_.yield = graph_.AddNode("YieldOp", handed_out, dys_,
                                 {{"non_differentiable_outputs", fixed},
                                  {"full_shape_outputs", std::vector<int64_t>{}},
                                  {"names", names}},
                                 kCaesuraDomain, graph_.UniqueName("yield"));
  module_.yield->set_since_version(1);
}

// An incoming gradient that is the first operand of an Add which sums it with another one of full
// shape may be a scalar zero; everywhere else it stands for the output's gradient by itself.
std::vector<int64_t> ModuleBuilder::FullShapeOutputs() const {
  const std::unordered_set<const Value*> incoming(dys_.begin(), dys_.end());
  std::unordered_set<const Value*> partial;  // sums of incoming gradients alone
  for (const Value* dy : dys_) partial.insert(dy);
  std::vector<int64_t> out;
  for (size_t k = 0; k < dys_.size(); ++k) {
    const Value* sum = dys_[k];
    bool joined = false;
    // The driver adds the incoming gradients of one value first, then those from inside: follow the
    // chain.
    while (sum->uses().size() == 1 && sum->uses()[0].node->Is("Add") &&
           sum->uses()[0].node->phase() == Phase::kBackward) {
      const Node& add = *sum->uses()[0].node;
      const Value* other = add.input(1 - sum->uses()[0].index);
      joined |= partial.count(other) == 0;
      sum = add.output(0);
      if (joined) break;
      partial.insert(sum);
    }
    if (!joined) out.push_back(module_.gradient_of[k]);
  }
  return out;
}

void ModuleBuilder::SetOutputs(const std::vector<Value*>& dxs) {
  graph_.ClearOutputs();
  std::unordered_set<const Value*> taken;
  for (size_t i = 0; i < dxs.size(); ++i) {
    Value* dx = dxs[i];
    // Each output is a value of its own, made by a node.
    if (!taken.insert(dx).second || dx->producer() == nullptr || dx->producer() == module_.yield) {
      Node* copy = graph_.AddOp("Identity", {dx}, {}, "", 1, xs_[i]->name() + "/dx");
      copy->set_phase(Phase::kBackward);
      copy->output(0)->set_type(xs_[i]->type());
      dx = copy->output(0);
    }
    graph_.AddOutput(dx);
    module_.differentiated.push_back(xs_[i]->name());
  }
}

Result<ModuleGraph> ModuleBuilder::Build() {
  RETURN_IF_ERROR(graph_.SortTopologically());
  AddYield();
  GradientOptions options;
  options.xs = xs_;
  for (size_t k = 0; k < dys_.size(); ++k)
    options.ys.push_back({ys_[module_.gradient_of[k]], dys_[k]});
  Result<GradientGraph> gradient = BuildGradient(graph_, options);
  if (!gradient.ok()) {
    graph_.RemoveNode(module_.yield);
    return gradient.status();
  }
  module_.yield->SetAttribute("full_shape_outputs", FullShapeOutputs());
  for (const Value* x : gradient->unreachable) module_.unreachable.push_back(x->name());
  SetOutputs(gradient->dxs);
  return std::move(module_);
}

// The values of `values` and all that depends on one of them.
std::unordered_set<const Value*> Dependents(const Graph& graph, const std::vector<Value*>& values) {
  std::unordered_set<const Value*> out(values.begin(), values.end());
  for (const auto& node : graph.nodes()) {
    const std::vector<Value*> inputs = gradient::AllInputs(*node);
    const bool reads =
        std::any_of(inputs.begin(), inputs.end(), [&](const Value* v) { return out.count(v) > 0; });
    if (reads) out.insert(node->outputs().begin(), node->outputs().end());
  }
  return out;
}

Status CheckIndependent(Graph& graph, const std::vector<Value*>& values) {
  std::unordered_set<const Value*> seen;
  for (const Value* value : values) {
    if (value == nullptr || value->graph() != &graph)
      return InvalidArgument("a yielded value is not of this graph");
    if (!seen.insert(value).second)
      return InvalidArgument("'" + value->name() + "' is yielded twice");
  }
  RETURN_IF_ERROR(graph.SortTopologically());
  const std::unordered_set<const Value*> dependents = Dependents(graph, values);
  for (const Value* value : values) {
    const Node* producer = value->producer();
    if (producer == nullptr) continue;
    for (const Value* input : gradient::AllInputs(*producer)) {
      if (input == nullptr || !dependents.count(input)) continue;
      return InvalidArgument("'" + value->name() + "' depends on another value of the same yield");
    }
  }
  return {};
}

// Moves the graph's last node directly after the last producer of its inputs.
void MoveUp(Graph& graph, const Node* last) {
  std::unordered_set<const Node*> producers;
  for (const Value* input : last->inputs()) producers.insert(input->producer());
  const Node* producer = nullptr;
  for (const auto& node : graph.nodes()) {
    if (producers.count(node.get())) producer = node.get();
  }
  GraphEdit edit(graph);
  if (producer != nullptr) edit.MoveAfter(*last, *producer);
  else if (graph.nodes().front().get() != last) edit.MoveBefore(*last, *graph.nodes().front());
}

}  // namespace

Result<ModuleGraph> BuildModuleGraph(Graph& graph, const ModuleGraphOptions& options) {
  ASSIGN_OR_RETURN(std::vector<Value*> xs, FindXs(graph, options));
  const gradient::QuantizedLinks links(graph);
  return ModuleBuilder(graph, std::move(xs), options.extra).Build();
}

Result<Node*> InsertIdentityYield(Graph& graph, const std::vector<Value*>& values) {
  if (values.empty()) return InvalidArgument("a yield needs values");
  RETURN_IF_ERROR(CheckIndependent(graph, values));
  std::vector<Value*> back;
  std::vector<std::string> names;
  std::vector<int64_t> all;
  for (Value* value : values) {
    back.push_back(graph.AddValue(graph.UniqueName(value->name() + "/back"), value->type()));
    graph.ReplaceAllUses(value, back.back());
    names.push_back(value->name());
    all.push_back(static_cast<int64_t>(all.size()));
  }
  Node* yield = graph.AddNode("YieldOp", values, back,
                              {{"identity", int64_t{1}},
                               {"non_differentiable_outputs", std::vector<int64_t>{}},
                               {"full_shape_outputs", all},
                               {"names", names}},
                              kCaesuraDomain, graph.UniqueName("yield"));
  yield->set_since_version(1);
  yield->set_phase(values[0]->producer() == nullptr ? Phase::kForward
                                                    : values[0]->producer()->phase());
  MoveUp(graph, yield);
  return yield;
}

}  // namespace caesura
