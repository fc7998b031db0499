// SPDX-License-Identifier: Apache-2.0
#include "training/command/train/made_step.h"

#include <algorithm>

#include <CLI/CLI.hpp>

#include "core/base/status_macros.h"
#include "training/command/dim_bindings.h"
#include "training/command/tensor_files.h"
#include "training/session/exported_step.h"
#include "training/step/step_program.h"

namespace caesura::command {
namespace {

Tensor MakeInput(const FeedSpec& spec) {
  Tensor out = Tensor::Zeros(spec.dtype, spec.shape);
  uint32_t state = 1;
  const auto next = [&state] {
    state = state * 1664525u + 1013904223u;  // Numerical Recipes' constants
    return static_cast<double>(state >> 8) / (1 << 24);
  };
  if (spec.dtype == DType::kFloat32) std::generate_n(out.data<float>(), out.elements(), next);
  if (spec.dtype == DType::kFloat64) std::generate_n(out.data<double>(), out.elements(), next);
  return out;
}

}  // namespace

void AddFeedOptions(CLI::App& app, FeedOptions* options) {
  app.add_option("--shape", options->shapes, "Shape of an input, NAME=1,3,224,224; may be repeated")
      ->allow_extra_args(false);
  app.add_option("--dim", options->dims, "Value of a symbolic dim, NAME=32; may be repeated")
      ->allow_extra_args(false);
  app.add_option("--inputs", options->inputs,
                 "A file of arrays (.npz, .safetensors) named after the inputs");
}

Result<NamedValues> MakeFeeds(const FeedOptions& options, const std::vector<Value*>& inputs) {
  TensorFile given;
  if (!options.inputs.empty()) {
    ASSIGN_OR_RETURN(given, ReadTensorFile(options.inputs));
  }
  NamedValues out;
  std::vector<Value*> open;
  for (Value* input : inputs) {
    const auto found = given.tensors.find(input->name());
    if (found != given.tensors.end()) out[input->name()] = found->second;
    else open.push_back(input);
  }
  ASSIGN_OR_RETURN(const DimBindings bindings, DimBindings::Parse(options.shapes, options.dims));
  ASSIGN_OR_RETURN(const std::vector<FeedSpec> specs, bindings.Feeds(open));
  for (size_t i = 0; i < open.size(); ++i) out[open[i]->name()] = MakeInput(specs[i]);
  return out;
}

Result<std::unique_ptr<TrainingSession>> MakeStepSession(const TrainOptions& options,
                                                         const Model& model) {
  ASSIGN_OR_RETURN(const bool exported, IsExportedStep(options.model));
  TrainingOptions training;
  if (exported) {
    ASSIGN_OR_RETURN(training.step, ReadStepOptions(model));
    ASSIGN_OR_RETURN(training.providers, MakeProviders(options.provider));
    training.threads = options.training.threads;
  } else {
    ASSIGN_OR_RETURN(training, MakeTrainingOptions(options, 1, /*is_text=*/false));
  }
  return TrainingSession::Create(model.Clone(), std::move(training));
}

std::vector<Value*> StepInputs(const TrainingSession& session) {
  std::vector<Value*> inputs;
  for (Value* input : session.runs().step_graph().inputs()) {
    if (!IsProgramInput(input->name())) inputs.push_back(input);
  }
  return inputs;
}

}  // namespace caesura::command
