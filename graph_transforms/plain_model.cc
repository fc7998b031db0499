// SPDX-License-Identifier: Apache-2.0
#include "graph_transforms/plain_model.h"

#include <algorithm>

#include "core/base/status_macros.h"
#include "core/graph/op_schema.h"
#include "core/graph/pass.h"
#include "graph_transforms/pipeline.h"
#include "graph_transforms/shapes/shape_inference_pass.h"
#include "graph_transforms/simplify/dead_node_elimination.h"
#include "graph_transforms/standard_ops.h"

namespace caesura {
namespace {

// Makes output `i` of the graph go by this name.
void NameOutput(Graph& graph, int i, const std::string& name) {
  const std::vector<Value*>& all = graph.outputs();
  Value* output = all[i];
  if (output->name() == name) return;
  Value* named = graph.AddValue(name, output->type());
  Node* producer = output->producer();
  if (producer == nullptr || std::count(all.begin(), all.end(), output) > 1) {
    Node* node = graph.AddNode("Identity", {output}, {named});
    node->set_since_version(SinceVersion("Identity"));
    graph.SetOutput(i, named);
    return;
  }
  graph.ReplaceAllUses(output, named);
  const std::vector<Value*> outputs = graph.ReleaseOutputs(producer);
  for (size_t k = 0; k < outputs.size(); ++k) {
    if (outputs[k] != nullptr)
      producer->SetOutput(static_cast<int>(k), outputs[k] == output ? named : outputs[k]);
  }
}

// All nodes are alike to a reader: what comes after the gradients is written over nothing there.
void ForgetPhases(Graph& graph) {
  for (const auto& node : graph.nodes()) {
    node->set_phase(Phase::kForward);
    for (Graph* body : node->Subgraphs()) ForgetPhases(*body);
  }
}

}  // namespace

Status MakePlain(Model& model, const std::vector<std::string>& outputs) {
  RETURN_IF_ERROR(RunPasses(SimplifyPasses(), model).status());
  RETURN_IF_ERROR(WriteInStandardOps(*model.graph));
  ForgetPhases(*model.graph);
  RETURN_IF_ERROR(RunPasses(PlainPasses(), model).status());
  Graph& graph = *model.graph;
  for (size_t i = 0; i < outputs.size(); ++i) {  // outputs that are copies become what they copy
    Value* output = graph.outputs()[i];
    while (output->producer() != nullptr && output->producer()->Is("Identity"))
      output = output->producer()->input(0);
    graph.SetOutput(static_cast<int>(i), output);
  }
  RETURN_IF_ERROR(RunPasses({MakeDeadNodeEliminationPass()}, model).status());
  graph.RemoveUnusedValues();  // they would keep the names
  for (size_t i = 0; i < outputs.size(); ++i) NameOutput(graph, static_cast<int>(i), outputs[i]);
  return {};
}

Result<Model> PlainGradientModel(const Model& model, const GradientModelOptions& options) {
  Model forward = model.Clone();
  for (const std::string& name : options.by) {
    Value* value = forward.graph->FindValue(name);
    const bool is_constant = value != nullptr && forward.graph->Initializer(value) != nullptr;
    if (is_constant && !forward.graph->IsGraphInput(value)) forward.graph->AddInput(value);
  }
  RETURN_IF_ERROR(WriteBeforeGradients(*forward.graph));
  RETURN_IF_ERROR(RunPasses({MakeShapeInferencePass()}, forward).status());
  ASSIGN_OR_RETURN(Model gradient, GradientModel(forward, options));
  std::vector<std::string> names;
  for (const Value* output : gradient.graph->outputs()) names.push_back(output->name());
  RETURN_IF_ERROR(MakePlain(gradient, names));
  gradient.graph->RemoveUnusedValues();
  return gradient;
}

}  // namespace caesura
