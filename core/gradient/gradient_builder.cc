// SPDX-License-Identifier: Apache-2.0
#include "core/gradient/gradient_builder.h"

#include <algorithm>
#include <memory>
#include <unordered_map>

#include "core/base/status_macros.h"
#include "core/onnx/function_body.h"
#include "core/graph/op_def.h"
#include "core/onnx/inference/shape_inference.h"
#include "core/gradient/gradient_rules.h"
#include "core/gradient/op_body.h"
#include "core/gradient/sequence_map.h"
#include "core/gradient/training_mode.h"

namespace caesura {
namespace gradient {
namespace {

class Driver {
 public:
  Driver(Graph& graph, const GradientOptions& options)
      : graph_(graph),
        options_(options),
        writer_(graph, Phase::kBackward, options.name_prefix),
        store_(&writer_),
        links_(graph) {}

  Result<GradientGraph> Build();

 private:
  enum class Choice { kRule, kExpansion, kBody, kMissing };

  Status CheckEnds() const;
  // Replaces nodes on the path by their bodies until each has a rule, or no body either.
  Status FindPath();
  Choice Choose(Node& node) const;
  // Puts what the node's rule computes its outputs by in its place, at the end of the list. False
  // where the rule refuses.
  bool Expand(Node* node);
  void Seed();
  void Visit(Node& node);
  void Report(const Node& node, const std::string& why);
  // Lets the walk go on after a node that failed, so that all such nodes are found at once.
  void AddPlaceholders(const Node& node, const GradientContext& g);
  Result<GradientGraph> Finish();
  Status Fail();
  void RemoveDead(const std::vector<Value*>& kept);
  // Shape nodes of forward values move to where the value is made: its bytes need not live for
  // them.
  void HoistShapes();

  Graph& graph_;
  const GradientOptions& options_;
  NodeWriter writer_;
  GradientStore store_;
  const QuantizedLinks links_;
  std::unique_ptr<GradientPath> path_;
  std::unordered_set<const Node*> bodiless_;  // their schema has a body, but none for their inputs
  std::unordered_map<const Node*, std::string> unexpanded_;  // why their body refuses
  std::vector<std::string> problems_;
  std::vector<Node*> nodes_;  // of the backward part, once it is complete
};

Status Driver::CheckEnds() const {
  std::string wrong;
  auto check = [&](const Value* value, const char* what) {
    if (value != nullptr && MayCarryGradient(value->type())) return;
    const std::string text =
        value == nullptr ? "null" : "'" + value->name() + "' of type " + value->type().ToString();
    wrong += (wrong.empty() ? "" : "; ") + std::string(what) + " " + text + " is no floating value";
  };
  for (const GradientSeed& seed : options_.ys) {
    check(seed.y, "output");
    if (seed.dy != nullptr) check(seed.dy, "output gradient");
  }
  for (const Value* x : options_.xs) check(x, "input");
  return wrong.empty() ? Status() : InvalidArgument("cannot differentiate: " + wrong);
}

Driver::Choice Driver::Choose(Node& node) const {
  const GradientRule* rule = FindGradientRule(node);
  const GradientContext question(node, rule, *path_);
  if (rule != nullptr && (rule->applies == nullptr || rule->applies(question)))
    return !rule->by_body             ? Choice::kRule
           : unexpanded_.count(&node) ? Choice::kMissing
                                      : Choice::kExpansion;
  return HasFunctionBody(node) && !bodiless_.count(&node) ? Choice::kBody : Choice::kMissing;
}

bool Driver::Expand(Node* node) {
  std::unordered_set<const Node*> before, added;
  for (const auto& there : graph_.nodes()) before.insert(there.get());
  NodeWriter writer(graph_, node->phase(), options_.name_prefix);
  writer.set_origin(node);
  OpBody body(*node, &writer, /*is_differentiated=*/true);
  OpDefOf(*node).body(body);
  const bool is_refused = !body.refusal().empty();
  const std::vector<Value*> outputs =
      is_refused ? std::vector<Value*>() : graph_.ReleaseOutputs(node);
  for (size_t i = 0; i < outputs.size(); ++i) {
    if (outputs[i] != nullptr)
      writer.AddWithOutputs("Identity", {body.result(static_cast<int>(i))}, {outputs[i]});
  }
  for (const auto& there : graph_.nodes()) {
    if (before.count(there.get())) continue;
    there->set_metadata(node->metadata());
    added.insert(there.get());
  }
  if (is_refused) unexpanded_[node] = body.refusal();
  if (is_refused) graph_.RemoveNodes(added);
  else graph_.RemoveNode(node);
  return !is_refused;
}

Status Driver::FindPath() {
  std::vector<Value*> ys;
  for (const GradientSeed& seed : options_.ys) ys.push_back(seed.y);
  bool expanded = false;
  do {
    RETURN_IF_ERROR(graph_.SortTopologically());
    if (expanded)
      (void)InferShapes(
          graph_);  // what cannot be inferred stays unknown: the rules that need it say so
    expanded = false;
    path_ = std::make_unique<GradientPath>(graph_, options_.xs, ys, options_.stop);
    for (Node* node : path_->nodes()) {
      const Choice choice = Choose(*node);
      if (choice == Choice::kExpansion) expanded |= Expand(node);
      if (choice != Choice::kBody) continue;
      ASSIGN_OR_RETURN(const bool replaced, ExpandFunctionBody(graph_, node));
      if (!replaced) bodiless_.insert(node);
      expanded |= replaced;
    }
  } while (expanded);
  return {};
}

void Driver::Seed() {
  for (const GradientSeed& seed : options_.ys) {
    if (!path_->Contains(seed.y)) continue;
    const Expr y(seed.y, &writer_);
    const Expr ones = seed.dy != nullptr ? Expr(seed.dy, &writer_)
                      : y.rank() == 0    ? Number(1, y)
                                         : OnesLike(y);
    if (!ones.value()->type().shape && seed.dy == nullptr) ones.value()->set_type(seed.y->type());
    store_.Add(seed.y, ones.value());
  }
}

std::string WhyMissing(const Node& node, const GradientRule* rule) {
  if (rule != nullptr)
    return "has a form that its gradient rule does not cover, and no function body for it";
  const OpDef& op = OpDefOf(node);
  if (op.derivative == OpDef::Derivative::kRefusal) return "has no gradient: " + op.derivative_note;
  const bool is_own = node.graph()->own_ops() != nullptr &&
                      node.graph()->own_ops()->Find(node.op_type(), node.domain());
  return is_own ? "has no gradient: its custom op has no gradient hook"
                : "has no gradient rule and no function body";
}

void Driver::Report(const Node& node, const std::string& why) {
  const std::string source = node.source().empty() ? "" : " (from " + node.source() + ")";
  problems_.push_back(node.Label() + source + " " + why);
}

void Driver::AddPlaceholders(const Node& node, const GradientContext& g) {
  for (Value* input : AllInputs(node)) {
    if (input != nullptr && g.NeedsValue(input) && store_.Find(input) == nullptr)
      store_.Add(input, input);
  }
}

void Driver::Visit(Node& node) {
  const GradientRule* rule = FindGradientRule(node);
  GradientContext g(node, rule, *path_, &writer_, &store_);
  bool any = false;
  for (int i = 0; i < g.output_count(); ++i) any |= static_cast<bool>(g.dY(i));
  if (!any) return;
  writer_.set_origin(&node);
  if (const auto refused = unexpanded_.find(&node); refused != unexpanded_.end()) {
    g.Refuse(refused->second);
  } else if (Choose(node) == Choice::kMissing) {
    g.Refuse(WhyMissing(node, rule));
  } else {
    for (int i = std::min(rule->outputs, g.output_count()); i < g.output_count(); ++i) {
      if (g.dY(i)) g.Refuse("has no gradient through its output " + std::to_string(i));
    }
    for (int i : rule->refuses) {
      if (g.Needs(i)) g.Refuse("has no gradient for its input " + std::to_string(i));
    }
    if (g.refusal().empty()) rule->function(g);
  }
  writer_.set_origin(nullptr);
  if (g.refusal().empty()) return;
  Report(node, g.refusal());
  AddPlaceholders(node, g);
}

Status Driver::Fail() {
  graph_.RemoveNodes({writer_.nodes().begin(), writer_.nodes().end()});
  std::string text = std::to_string(problems_.size()) +
                     (problems_.size() == 1 ? " node has" : " nodes have") + " no gradient:";
  for (auto it = problems_.rbegin(); it != problems_.rend(); ++it) text += "\n  " + *it;
  return Unsupported(text);
}

void Driver::RemoveDead(const std::vector<Value*>& kept) {
  const std::unordered_set<const Value*> results(kept.begin(), kept.end());
  std::unordered_set<const Node*> dead;
  const std::vector<Node*>& nodes = writer_.nodes();
  for (auto it = nodes.rbegin(); it != nodes.rend(); ++it) {
    bool read = false;
    for (const Value* output : (*it)->outputs()) {
      if (output == nullptr) continue;
      read |= results.count(output) || graph_.IsGraphOutput(output);
      for (const Value::Use& use : output->uses()) read |= !dead.count(use.node);
    }
    if (read) {
      nodes_.push_back(*it);
    } else {
      dead.insert(*it);
    }
  }
  std::reverse(nodes_.begin(), nodes_.end());
  graph_.RemoveNodes(dead);
}

void Driver::HoistShapes() {
  const std::unordered_set<const Node*> backward(nodes_.begin(), nodes_.end());
  std::unordered_map<const Node*, std::vector<const Node*>>
      shapes_of;  // by producer; null: there from the start
  std::unordered_set<const Node*> moved;
  for (Node* node : nodes_) {
    const Node* producer = node->Is("Shape") ? node->input(0)->producer() : nullptr;
    if (!node->Is("Shape") || backward.count(producer)) continue;
    if (node->input(0)->graph() != &graph_) continue;  // a body asks for it when it needs it
    shapes_of[producer].push_back(node);
    moved.insert(node);
    node->set_phase(Phase::kForward);
  }
  if (moved.empty()) return;
  std::vector<const Node*> order = shapes_of[nullptr];
  for (const auto& node : graph_.nodes()) {
    if (moved.count(node.get())) continue;
    order.push_back(node.get());
    auto it = shapes_of.find(node.get());
    if (it != shapes_of.end()) order.insert(order.end(), it->second.begin(), it->second.end());
  }
  graph_.Reorder(order);
  nodes_.erase(
      std::remove_if(nodes_.begin(), nodes_.end(), [&](Node* n) { return moved.count(n) > 0; }),
      nodes_.end());
}

Result<GradientGraph> Driver::Finish() {
  GradientGraph out;
  for (Value* x : options_.xs) {
    Value* dx = store_.Find(x);
    if (dx == nullptr) {
      out.unreachable.push_back(x);
      if (options_.unreachable == UnreachableGradient::kZeros) {
        dx = ZerosOf(Expr(x, &writer_)).value();
        dx->set_type(x->type());
      }
    }
    out.dxs.push_back(dx);
  }
  DropOwnGradients(graph_);
  RemoveDead(out.dxs);
  HoistShapes();
  out.nodes = nodes_;
  return out;
}

Result<GradientGraph> Driver::Build() {
  RETURN_IF_ERROR(CheckEnds());
  RETURN_IF_ERROR(FindPath());
  if (options_.unreachable == UnreachableGradient::kError) {
    std::string names;
    for (const Value* x : options_.xs) {
      if (!path_->Contains(x)) names += (names.empty() ? "'" : ", '") + x->name() + "'";
    }
    if (!names.empty()) return InvalidArgument("no output depends on " + names);
  }
  Seed();
  for (auto it = path_->nodes().rbegin(); it != path_->nodes().rend(); ++it) Visit(**it);
  if (!problems_.empty()) return Fail();
  return Finish();
}

}  // namespace
}  // namespace gradient

Result<GradientGraph> BuildGradient(Graph& graph, const GradientOptions& options) {
  return gradient::Driver(graph, options).Build();
}

}  // namespace caesura
