// SPDX-License-Identifier: Apache-2.0
#include "training/training_session.h"

#include <algorithm>
#include <unordered_set>

#include "core/base/status_macros.h"
#include "core/plan/function_expansion.h"
#include "core/providers/cpu_provider.h"
#include "graph_transforms/pipeline.h"
#include "training/gradient/training_mode.h"
#include "training/kernels/training_ops.h"

namespace caesura {

Result<std::unique_ptr<TrainingSession>> TrainingSession::Create(Model model, TrainingOptions options) {
  std::unique_ptr<TrainingSession> session(new TrainingSession);
  session->options_ = std::move(options);
  RETURN_IF_ERROR(session->Prepare(std::move(model)));
  return session;
}

Status TrainingSession::Prepare(Model model) {
  RETURN_IF_ERROR(RegisterTrainingOpSchemas());
  RETURN_IF_ERROR(options_.schedule.Check());
  if (options_.step.accumulation_steps < 1) return InvalidArgument("accumulation_steps must be at least 1");
  if (options_.providers.empty()) options_.providers.push_back(MakeCpuProvider(RegisterTrainingKernels));
  learning_rate_ = LearningRate(options_.step.optimizer);
  original_ = model.Clone();
  ASSIGN_OR_RETURN(const std::vector<std::string> trainable, TrainableNames(model, options_.step));
  std::unordered_set<std::string> changing(trainable.begin(), trainable.end());
  for (const Value* value : RunningStatistics(*model.graph)) changing.insert(value->name());
  auto records = RunPasses(ForwardPasses(std::move(changing)), model, options_.disabled_passes);
  if (!records.ok()) return records.status();

  ASSIGN_OR_RETURN(update_, MakeStep(model, trainable, true));
  if (options_.step.accumulation_steps > 1) {
    ASSIGN_OR_RETURN(accumulate_, MakeStep(model, trainable, false));
  }
  return MakeEvaluation(model);
}

Result<std::unique_ptr<ParameterGraph>> TrainingSession::MakeStep(const Model& model,
                                                                  const std::vector<std::string>& trainable,
                                                                  bool with_update) {
  ASSIGN_OR_RETURN(StepProgram program, BuildStepProgram(model, trainable, options_.step, with_update));
  ASSIGN_OR_RETURN(const bool expanded, ExpandMissingKernels(*program.graph, options_.providers));
  static_cast<void>(expanded);
  Model step;
  step.graph = program.graph;
  auto records = RunPasses(StepPasses(), step, options_.disabled_passes);
  if (!records.ok()) return records.status();
  if (with_update) {
    names_ = program.parameters;
    trained_ = program.trained;
    statistics_ = program.statistics;
    RETURN_IF_ERROR(FillParameters(*program.graph));
  } else if (!std::equal(program.parameters.begin(), program.parameters.end(), names_.begin())) {
    return Internal("the accumulating program's parameters are no prefix of the updating one's");
  }
  PlanOptions options;
  options.threads = options_.threads;
  options.cache_values = false;  // every update changes every parameter
  return std::make_unique<ParameterGraph>(program.graph, program.parameters, &parameters_, options_.providers, options);
}

Status TrainingSession::FillParameters(const Graph& graph) {
  for (const std::string& name : names_) {
    ASSIGN_OR_RETURN(Tensor own, graph.Initializer(graph.FindValue(name))->Clone());
    parameters_.Add(name, std::move(own));
  }
  return {};
}

Status TrainingSession::MakeEvaluation(const Model& model) {
  const std::vector<std::string> own(names_.begin(), names_.begin() + trained_ + statistics_);
  PlanOptions options;
  options.threads = options_.threads;
  for (const bool with_loss : {true, false}) {
    Model copy = model.Clone();
    RETURN_IF_ERROR(SwitchToEvaluation(*copy.graph));
    if (with_loss) {
      ASSIGN_OR_RETURN(Value * loss, AddLoss(*copy.graph, options_.step.loss));
      copy.graph->AddOutput(loss);
    }
    ASSIGN_OR_RETURN(const bool expanded, ExpandMissingKernels(*copy.graph, options_.providers));
    static_cast<void>(expanded);
    (with_loss ? evaluate_ : predict_) =
        std::make_unique<ParameterGraph>(copy.graph, own, &parameters_, options_.providers, options);
  }
  return {};
}

double TrainingSession::learning_rate() const { return learning_rate_ * options_.schedule.Factor(updates_); }

NamedValues TrainingSession::ProgramFeeds() const {
  return {{kLearningRateInput, Tensor::Scalar<double>(learning_rate())},
          {kStepInput, Tensor::Scalar<int64_t>(updates_ + 1)},
          {kResetInput, Tensor::Scalar<bool>(micro_steps_ % options_.step.accumulation_steps == 0)}};
}

Result<double> TrainingSession::Step(const NamedValues& feeds, std::vector<ExecutionObserver*> observers) {
  if (lost_) return InvalidArgument("an earlier step failed in the middle of its updates; Restore a checkpoint first");
  const bool updates = (micro_steps_ + 1) % options_.step.accumulation_steps == 0;
  ParameterGraph& program = updates ? *update_ : *accumulate_;
  ASSIGN_OR_RETURN(std::vector<RuntimeValue> ordered, program.Order(feeds, ProgramFeeds()));
  RunOptions run;
  run.seed = options_.seed;
  run.step = static_cast<uint64_t>(micro_steps_);
  run.observers = std::move(observers);
  auto results = program.Run(std::move(ordered), std::move(run));
  if (!results.ok()) {
    if (options_.step.commit != CommitMode::kEagerConsume) return results.status();
    lost_ = true;
    return results.status().WithPrefix("the step is lost, parameters may be half updated: ");
  }
  ++micro_steps_;
  if (updates) ++updates_;
  parameters_.TouchAll();
  const double loss = (*results)[0].tensor().ToVector<double>()[0];
  gradients_.assign(results->begin() + 1, results->end());
  return loss;
}

Result<Evaluation> TrainingSession::Evaluate(const NamedValues& feeds) {
  ASSIGN_OR_RETURN(std::vector<RuntimeValue> ordered, evaluate_->Order(feeds, {}));
  RunOptions run;
  run.seed = options_.seed;
  ASSIGN_OR_RETURN(std::vector<RuntimeValue> outputs, evaluate_->Run(std::move(ordered), std::move(run)));
  Evaluation out;
  out.loss = outputs.back().tensor().ToVector<double>()[0];
  outputs.pop_back();
  out.outputs = std::move(outputs);
  return out;
}

Result<std::vector<RuntimeValue>> TrainingSession::Predict(const NamedValues& feeds) {
  ASSIGN_OR_RETURN(std::vector<RuntimeValue> ordered, predict_->Order(feeds, {}));
  RunOptions run;
  run.seed = options_.seed;
  return predict_->Run(std::move(ordered), std::move(run));
}

std::vector<std::string> TrainingSession::ParameterNames() const {
  return {names_.begin(), names_.begin() + trained_ + statistics_};
}

Result<Tensor> TrainingSession::Parameter(const std::string& name) const {
  const int i = parameters_.Find(name);
  if (i < 0) return NotFound("the session has no parameter '" + name + "'");
  return parameters_.tensor(i);
}

Status TrainingSession::SetParameter(const std::string& name, const Tensor& value) {
  const int i = parameters_.Find(name);
  if (i < 0) return NotFound("the session has no parameter '" + name + "'");
  const Tensor& own = parameters_.tensor(i);
  if (own.dtype() != value.dtype() || own.shape() != value.shape()) {
    return InvalidArgument("parameter '" + name + "' is " + DTypeName(own.dtype()) + own.shape().ToString() +
                           ", got " + DTypeName(value.dtype()) + value.shape().ToString());
  }
  CopyElements(own.dtype(), value.raw(), own.raw(), own.elements());
  parameters_.Touch(i);
  return {};
}

Result<Model> TrainingSession::TrainedModel() const {
  Model model = original_.Clone();
  RETURN_IF_ERROR(SwitchToEvaluation(*model.graph));
  for (const std::string& name : ParameterNames()) {
    ASSIGN_OR_RETURN(Tensor copy, parameters_.tensor(parameters_.Find(name)).Clone());
    model.graph->SetInitializer(model.graph->FindValue(name), std::move(copy));
  }
  return model;
}

Result<std::shared_ptr<const ExecutionPlan>> TrainingSession::StepPlan(const NamedValues& feeds) {
  ASSIGN_OR_RETURN(std::vector<RuntimeValue> ordered, update_->Order(feeds, ProgramFeeds()));
  return update_->Plan(ordered);
}

}  // namespace caesura
