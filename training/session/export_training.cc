// SPDX-License-Identifier: Apache-2.0
#include "training/session/export_training.h"

#include <map>
#include <utility>
#include <vector>

#include "core/base/status_macros.h"
#include "core/gradient/op_body.h"
#include "core/graph/op_schema.h"
#include "core/graph/pass.h"
#include "core/onnx/model_writer.h"
#include "core/onnx/opsets/opset_lowering.h"
#include "graph_transforms/plain_model.h"
#include "graph_transforms/shapes/shape_inference_pass.h"
#include "graph_transforms/standard_ops.h"
#include "training/session/session_files.h"
#include "training/session/session_parameters.h"
#include "training/session/training_progress.h"
#include "training/step/step_program.h"

namespace caesura {
namespace {

Status CheckOpset(int opset) {
  if (opset == 0 || (opset >= kOldestOpset && opset <= LatestOpset())) return {};
  return InvalidArgument("opset: expected " + std::to_string(kOldestOpset) + " to " +
                         std::to_string(LatestOpset()) + ", got " + std::to_string(opset));
}

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

// Makes what the program writes to inputs and outputs of its graph. `names`: of the outputs that it
// has, and then of the new ones.
void OpenParameters(const StepProgram& program, std::vector<std::string>* names) {
  Graph& graph = *program.graph;
  const std::map<std::string, Value*> last = LastValues(graph, program.parameters);
  for (const std::string& name : program.parameters) {
    Value* value = graph.FindValue(name);
    const Tensor& tensor = *graph.Initializer(value);
    value->set_type(ValueType::Tensor(tensor.dtype(), tensor.shape()));
    graph.RemoveInitializer(value);
    if (!graph.IsGraphInput(value)) graph.AddInput(value);
    const auto found = last.find(name);
    if (found == last.end()) continue;
    names->push_back(kUpdatedPrefix + name);
    graph.AddOutput(found->second);
  }
}

}  // namespace

Status ExportTraining(const SessionParts& from, const std::string& path,
                      const TrainingExport& what) {
  RETURN_IF_ERROR(CheckOpset(what.opset));
  const StepOptions step = OptionsOf(from.runs, what.part);
  ASSIGN_OR_RETURN(const StepProgram program, ProgramOf(from.runs, step, what.part));
  std::vector<std::string> names = OutputNames(program, step, what.part);
  OpenParameters(program, &names);
  Model model;
  model.graph = program.graph;
  model.producer = "caesura";
  RETURN_IF_ERROR(MakePlain(model, names));
  RETURN_IF_ERROR(SetDefaults(from, program.parameters, *model.graph));
  model.graph->RemoveUnusedValues();
  if (what.opset != 0) RETURN_IF_ERROR(LowerOpset(*model.graph, what.opset));
  return WriteModel(model, path, {.external_above = {}, .opset = what.opset});
}

}  // namespace caesura
