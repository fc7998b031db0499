// SPDX-License-Identifier: Apache-2.0
#include "core/gradient/training_mode.h"

#include <unordered_map>

#include "core/base/status_macros.h"
#include "core/graph/op_schema.h"

namespace caesura {
namespace {

constexpr int kMean = 3, kVariance = 4;  // inputs of BatchNormalization; as outputs 1 and 2

// The initializer of a value, through copies; null when there is none.
Value* InitializerBehind(Value* value) {
  while (value != nullptr && value->producer() != nullptr && value->producer()->Is("Identity")) {
    value = value->producer()->input(0);
  }
  if (value == nullptr || value->graph()->Initializer(value) == nullptr) return nullptr;
  return value->graph()->IsGraphInput(value) ? nullptr : value;
}

class Switcher {
 public:
  Switcher(const TrainingModeOptions& options, bool holds_gradients)
      : options_(options), holds_gradients_(holds_gradients) {}

  Status Visit(Graph& graph);
  Result<std::vector<StatisticUpdate>> Finish();

 private:
  void SwitchDropout(Graph& graph, Node& node);
  void SwitchBatchNormalization(Graph& graph, Node& node);
  void RecordStatistics(Node& node);
  void TakeAssign(Graph& graph, Node& node);
  // A gradient that the model holds already is that of the node as it stands.
  bool MaySwitch(const Node& node);

  const TrainingModeOptions& options_;
  const bool holds_gradients_;
  std::vector<StatisticUpdate> updates_;
  std::unordered_map<const Value*, size_t> update_of_;
  std::vector<std::string> problems_;
};

// True if the node itself says if it drops, and not a graph input or a computed value.
bool DecidesItself(const Node& dropout) {
  Value* mode = dropout.input(2);
  if (mode == nullptr) return true;
  return InitializerBehind(mode) != nullptr ||
         (mode->producer() != nullptr && mode->producer()->Is("Constant"));
}

bool Switcher::MaySwitch(const Node& node) {
  if (!holds_gradients_) return true;
  problems_.push_back(node.Label() +
                      " computes something else in training, and the model holds gradients of what "
                      "it computes now");
  return false;
}

void Switcher::SwitchDropout(Graph& graph, Node& node) {
  if (!DecidesItself(node) || !MaySwitch(node)) return;
  node.SetInput(2, graph.AddInitializer(graph.UniqueName(node.name() + "/training"),
                                        Tensor::Scalar<bool>(true)));
}

void Switcher::SwitchBatchNormalization(Graph& graph, Node& node) {
  if (!MaySwitch(node)) return;
  AttributeMap attributes = {{"unbiased", int64_t{options_.unbiased_statistics}}};
  for (const char* name : {"epsilon", "momentum"}) {
    if (const float* value = node.FindAttr<float>(name)) attributes[name] = *value;
  }
  const std::vector<Value*> inputs = node.inputs();
  std::vector<Value*> outputs = graph.ReleaseOutputs(&node);
  outputs.resize(3, nullptr);
  for (int i = 1; i < 3; ++i) {
    if (outputs[i] != nullptr) continue;
    const Value* before = inputs[kMean + i - 1];
    outputs[i] = graph.AddValue(graph.UniqueName(before->name() + "/running"), before->type());
  }
  Node* training = graph.InsertBefore(
      node, {"BatchNormalizationTraining", inputs, std::move(outputs), std::move(attributes),
             kCaesuraDomain, graph.UniqueName(node.name() + "/training")});
  RecordStatistics(*training);
  graph.RemoveNode(&node);
}

void Switcher::RecordStatistics(Node& node) {
  for (int i : {kMean, kVariance}) {
    Value* target = InitializerBehind(node.input(i));
    if (target == nullptr)
      continue;  // computed, or fed by the caller, who finds the update among the outputs
    Value* value = node.output(i - kMean + 1);
    if (node.graph()->parent() != nullptr) {
      problems_.push_back(node.Label() +
                          " stands in a body of If, Loop or Scan and cannot update '" +
                          target->name() + "'");
      continue;
    }
    auto [it, fresh] = update_of_.try_emplace(target, updates_.size());
    if (fresh) {
      updates_.push_back({target, value});
    } else {  // shared by several nodes: this one goes on from what the last one made
      node.SetInput(i, updates_[it->second].value);
      updates_[it->second].value = value;
    }
  }
}

void Switcher::TakeAssign(Graph& graph, Node& node) {
  Value *target = InitializerBehind(node.input(0)), *value = node.input(1);
  if (target == nullptr || graph.parent() != nullptr ||
      !update_of_.try_emplace(target, updates_.size()).second) {
    problems_.push_back(node.Label() +
                        " needs an initializer that nothing else writes to, and no body around it");
    return;
  }
  updates_.push_back({target, value});
  const std::vector<Value*> outputs = graph.ReleaseOutputs(&node);
  if (!outputs.empty() && outputs[0] != nullptr) graph.ReplaceAllUses(outputs[0], value);
  graph.RemoveNode(&node);
}

Status Switcher::Visit(Graph& graph) {
  std::vector<Node*> nodes;
  for (const auto& node : graph.nodes()) nodes.push_back(node.get());
  for (Node* node : nodes) {
    for (Graph* body : node->Subgraphs()) RETURN_IF_ERROR(Visit(*body));
    if (options_.keep_evaluation.count(node->name())) continue;
    // The node is gone after some of these.
    if (node->Is("Dropout")) SwitchDropout(graph, *node);
    else if (node->Is("BatchNormalization")) SwitchBatchNormalization(graph, *node);
    else if (node->Is("Assign", kCaesuraDomain)) TakeAssign(graph, *node);
  }
  return {};
}

Result<std::vector<StatisticUpdate>> Switcher::Finish() {
  if (problems_.empty()) return std::move(updates_);
  std::string text = "cannot switch to training:";
  for (const std::string& problem : problems_) text += "\n  " + problem;
  return Unsupported(text);
}

// All nodes count as forward ones, also those of a gradient that the model holds
// (gradient_model.h): a training step has a backward of its own. True if there was such a gradient.
bool MakeForward(Graph& graph) {
  bool had_others = false;
  for (const auto& node : graph.nodes()) {
    had_others |= node->phase() == Phase::kBackward;
    node->set_phase(Phase::kForward);
    for (Graph* body : node->Subgraphs()) had_others |= MakeForward(*body);
  }
  return had_others;
}

void CollectStatistics(const Graph& graph, std::unordered_set<const Value*>* out) {
  for (const auto& node : graph.nodes()) {
    for (const Graph* body : node->Subgraphs()) CollectStatistics(*body, out);
    if (node->Is("Assign", kCaesuraDomain)) {
      if (const Value* value = InitializerBehind(node->input(0))) out->insert(value);
    }
    if (!node->Is("BatchNormalization") && !node->Is("BatchNormalizationTraining", kCaesuraDomain))
      continue;
    for (int i : {kMean, kVariance}) {
      if (const Value* value = InitializerBehind(node->input(i))) out->insert(value);
    }
  }
}

}  // namespace

Result<std::vector<StatisticUpdate>> SwitchToTraining(Graph& graph,
                                                      const TrainingModeOptions& options) {
  RETURN_IF_ERROR(graph.SortTopologically());
  Switcher switcher(options, MakeForward(graph));
  RETURN_IF_ERROR(switcher.Visit(graph));
  return switcher.Finish();
}

void DropOwnGradients(Graph& graph) {
  std::vector<Node*> nodes;
  for (const auto& node : graph.nodes()) nodes.push_back(node.get());
  for (Node* node : nodes) {
    bool passes = node->Is("WithGradient", kCaesuraDomain);
    for (size_t i = 0; i < node->outputs().size(); ++i)
      passes = passes && node->input(static_cast<int>(i)) != nullptr;
    if (!passes) {
      for (Graph* body : node->Subgraphs()) DropOwnGradients(*body);
      continue;
    }
    const std::vector<Value*> inputs = node->inputs(), outputs = graph.ReleaseOutputs(node);
    for (size_t i = 0; i < outputs.size(); ++i) {
      if (outputs[i] == nullptr) continue;
      graph.InsertBefore(*node, {"Identity",
                                 {inputs[i]},
                                 {outputs[i]},
                                 {},
                                 "",
                                 graph.UniqueName(node->name() + "/value")});
    }
    graph.RemoveNode(node);
  }
}

Status SwitchToEvaluation(Graph& graph) {
  if (graph.parent() == nullptr) DropOwnGradients(graph);
  std::vector<Node*> nodes;
  for (const auto& node : graph.nodes()) nodes.push_back(node.get());
  for (Node* node : nodes) {
    for (Graph* body : node->Subgraphs()) RETURN_IF_ERROR(SwitchToEvaluation(*body));
    if (node->Is("Dropout") && DecidesItself(*node)) node->TruncateInputs(2);
    if (node->Is("Assign", kCaesuraDomain)) {
      for (Value* output : graph.ReleaseOutputs(node)) graph.ReplaceAllUses(output, node->input(0));
      graph.RemoveNode(node);
      continue;
    }
    if (!node->Is("BatchNormalization") || node->Attr<int64_t>("training_mode", 0) == 0) continue;
    AttributeMap attributes = node->attributes();
    attributes.erase("training_mode");
    const std::vector<Value*> outputs = graph.ReleaseOutputs(node);
    for (int i = 1; i < static_cast<int>(outputs.size()); ++i) {
      if (outputs[i] != nullptr) graph.ReplaceAllUses(outputs[i], node->input(kMean + i - 1));
    }
    graph.InsertBefore(*node, {"BatchNormalization",
                               node->inputs(),
                               {outputs[0]},
                               std::move(attributes),
                               "",
                               graph.UniqueName(node->name() + "/evaluation")});
    graph.RemoveNode(node);
  }
  return {};
}

std::unordered_set<const Value*> RunningStatistics(const Graph& graph) {
  std::unordered_set<const Value*> out;
  CollectStatistics(graph, &out);
  return out;
}

}  // namespace caesura
