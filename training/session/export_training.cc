// SPDX-License-Identifier: Apache-2.0
#include "training/session/export_training.h"

#include <algorithm>
#include <map>
#include <utility>
#include <vector>

#include "core/base/status_macros.h"
#include "core/gradient/op_body.h"
#include "core/graph/op_schema.h"
#include "core/graph/pass.h"
#include "core/onnx/model_writer.h"
#include "graph_transforms/pipeline.h"
#include "graph_transforms/shapes/shape_inference_pass.h"
#include "graph_transforms/standard_ops.h"
#include "training/session/session_files.h"
#include "training/session/session_parameters.h"
#include "training/session/training_progress.h"
#include "training/step/step_program.h"

namespace caesura {
namespace {

// The options of this part, whatever they are in the session.
StepOptions OptionsOf(const StepRuns& runs, TrainingPart part) {
  StepOptions step = runs.options().step;
  if (part != TrainingPart::kGradients) return step;
  step.keep_gradients = true;
  step.clip_norm = 0;
  step.accumulation_steps = 1;
  step.refuse_nonfinite = false;
  return step;
}

Result<StepProgram> ProgramOf(const StepRuns& runs, const StepOptions& step, TrainingPart part) {
  if (part == TrainingPart::kAccumulate && step.accumulation_steps == 1) {
    return InvalidArgument(
        "what: 'accumulate' needs a session that accumulates gradients, accumulation_steps is 1");
  }
  return runs.BuildProgram(step, part == TrainingPart::kStep, [](Model& model) -> Status {
    RETURN_IF_ERROR(WriteBeforeGradients(*model.graph));
    return RunPasses({MakeShapeInferencePass()}, model).status();
  });
}

// The input that output `i` is written over, or -1.
int OverwrittenInput(const Node& node, int i) {
  if (node.domain() != kCaesuraDomain || node.phase() != Phase::kOptimizer) return -1;
  if (node.op_type() == "Assign" || node.op_type() == "InPlaceAccumulator" ||
      node.op_type() == "PairwiseAccumulator")
    return i;
  const auto count = static_cast<int>(node.Attr<int64_t>("count", 0));
  if (count == 0) return -1;
  constexpr int kFirst = 3;  // UpdateSpec: the parameters, then their gradients, then the states
  return kFirst + i + (i < count ? 0 : count);
}

// The last value of each parameter that the program writes to, by name.
std::map<std::string, Value*> LastValues(const Graph& graph,
                                         const std::vector<std::string>& parameters) {
  std::map<const Value*, std::string> written;
  std::map<std::string, Value*> last;
  for (const std::string& name : parameters) written[graph.FindValue(name)] = name;
  for (const auto& node : graph.nodes()) {
    for (size_t i = 0; i < node->outputs().size(); ++i) {
      const int input = OverwrittenInput(*node, static_cast<int>(i));
      const auto found = input < 0 ? written.end() : written.find(node->input(input));
      if (found == written.end() || node->outputs()[i] == nullptr) continue;
      last[found->second] = node->outputs()[i];
      written[node->outputs()[i]] = found->second;
    }
  }
  return last;
}

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

// The defaults of inputs that a reader may leave out. Those that are others in each run have none.
Status SetDefaults(const SessionParts& from, const std::vector<std::string>& parameters,
                   Graph& graph) {
  const auto set = [&](const std::string& name, Tensor tensor) {
    Value* value = graph.FindValue(name);
    if (value != nullptr && graph.IsGraphInput(value))
      graph.SetInitializer(value, std::move(tensor));
  };
  for (const std::string& name : parameters) {
    ASSIGN_OR_RETURN(Tensor now, from.parameters.Get(name));
    set(name, std::move(now));
  }
  const NamedValues& feeds = from.runs.ProgramFeeds();
  for (const char* name : {kLearningRateInput, kCoefficientsInput, kLossScaleInput}) {
    const auto found = feeds.find(name);
    if (found == feeds.end()) continue;
    ASSIGN_OR_RETURN(Tensor now, found->second.tensor().Clone());
    set(name, std::move(now));
  }
  set(gradient::kSeedInput, Tensor::Scalar(static_cast<int64_t>(from.progress.seed)));
  return {};
}

Status Simplify(Model& model) {
  RETURN_IF_ERROR(RunPasses(SimplifyPasses(), model).status());
  return {};
}

// The names of the file's outputs, those of new values left out: in the order of StepProgram.
std::vector<std::string> OutputNames(const StepProgram& program, const StepOptions& step,
                                     TrainingPart part) {
  std::vector<std::string> names = {kLossOutput};
  names.insert(names.end(), step.keep_outputs.begin(), step.keep_outputs.end());
  for (int i = 0; step.keep_gradients && i < program.trained; ++i)
    names.push_back(kGradientPrefix + program.parameters[i]);
  const bool updates = part == TrainingPart::kStep;
  if (updates && step.clip_norm > 0) names.push_back(kGradientNormOutput);
  if (updates && program.graph->FindValue(kLossScaleInput) != nullptr)
    names.push_back(kGradientScaleOutput);
  return names;
}

// Rewrites the program's graph, which is the model's, in ONNX's operators; what it writes to
// becomes inputs and outputs. `names`: of the outputs that it has.
Status MakePlain(const StepProgram& program, std::vector<std::string> names, Model& model) {
  Graph& graph = *model.graph;
  const std::map<std::string, Value*> last = LastValues(graph, program.parameters);
  for (const std::string& name : program.parameters) {
    Value* value = graph.FindValue(name);
    const Tensor& tensor = *graph.Initializer(value);
    value->set_type(ValueType::Tensor(tensor.dtype(), tensor.shape()));
    graph.RemoveInitializer(value);
    if (!graph.IsGraphInput(value)) graph.AddInput(value);
    const auto found = last.find(name);
    if (found == last.end()) continue;
    names.push_back(kUpdatedPrefix + name);
    graph.AddOutput(found->second);
  }
  RETURN_IF_ERROR(Simplify(model));
  RETURN_IF_ERROR(WriteInStandardOps(graph));
  ForgetPhases(graph);
  RETURN_IF_ERROR(Simplify(model));
  for (size_t i = 0; i < names.size(); ++i) NameOutput(graph, static_cast<int>(i), names[i]);
  return {};
}

}  // namespace

Status ExportTraining(const SessionParts& from, const std::string& path, TrainingPart part) {
  const StepOptions step = OptionsOf(from.runs, part);
  ASSIGN_OR_RETURN(const StepProgram program, ProgramOf(from.runs, step, part));
  Model model;
  model.graph = program.graph;
  model.producer = "caesura";
  RETURN_IF_ERROR(MakePlain(program, OutputNames(program, step, part), model));
  RETURN_IF_ERROR(SetDefaults(from, program.parameters, *model.graph));
  model.graph->RemoveUnusedValues();
  return WriteModel(model, path);
}

}  // namespace caesura
