// SPDX-License-Identifier: Apache-2.0
#include "training/command/train/trained_model.h"

#include <algorithm>

#include "core/base/status_macros.h"
#include "core/onnx/model_reader.h"
#include "graph_transforms/pipeline.h"
#include "training/files/checkpoint.h"
#include "training/session/exported_step.h"
#include "core/gradient/training_mode.h"

namespace caesura::command {
namespace {

std::string TypeText(const Tensor& tensor) {
  return DTypeName(tensor.dtype()) + tensor.shape().ToString();
}

Status TakeParameters(const std::string& path, Graph& graph) {
  ASSIGN_OR_RETURN(const Checkpoint checkpoint, RestoreCheckpoint(path));
  const auto is_written = [](const StateSnapshot::Parameter& parameter) {
    return parameter.written;
  };
  if (checkpoint.step && std::any_of(checkpoint.step->parameters.begin(),
                                     checkpoint.step->parameters.end(), is_written)) {
    return InvalidArgument("checkpoint '" + path +
                           "' holds a step in the middle of its updates; `caesura train --resume` "
                           "ends it");
  }
  std::string problems;
  for (const auto& [name, tensor] : checkpoint.parameters) {
    Value* value = graph.FindValue(name);
    const Tensor* own = value == nullptr ? nullptr : graph.Initializer(value);
    if (own == nullptr) {
      problems += "\n  the model has no initializer '" + name + "'";
    } else if (own->dtype() != tensor.dtype() || own->shape() != tensor.shape()) {
      problems += "\n  '" + name + "' is " + TypeText(tensor) + ", the model has " + TypeText(*own);
    } else {
      graph.SetInitializer(value, tensor);
    }
  }
  return problems.empty()
             ? Status()
             : InvalidArgument("checkpoint '" + path + "' does not fit the model:" + problems);
}

}  // namespace

Result<Model> ReadTrainedModel(const std::string& path, const std::string& checkpoint) {
  ASSIGN_OR_RETURN(const bool exported, IsExportedStep(path));
  ASSIGN_OR_RETURN(Model model, ReadModel(exported ? ExportedModelPath(path) : path));
  const std::string& state = exported && checkpoint.empty() ? ExportedStatePath(path) : checkpoint;
  if (!state.empty()) RETURN_IF_ERROR(TakeParameters(state, *model.graph));
  RETURN_IF_ERROR(SwitchToEvaluation(*model.graph));
  return model;
}

std::vector<Value*> RequiredInputs(const Model& model) {
  std::vector<Value*> out;
  for (Value* input : model.graph->inputs()) {
    if (model.graph->Initializer(input) == nullptr) out.push_back(input);
  }
  return out;
}

Result<std::unique_ptr<Session>> MakeSession(Model model, const TrainOptions& options) {
  SessionOptions made;
  ASSIGN_OR_RETURN(made.providers, MakeProviders(options.provider));
  made.passes = InferencePasses;
  made.threads = options.training.threads;
  return Session::Create(std::move(model), std::move(made));
}

}  // namespace caesura::command
