// SPDX-License-Identifier: Apache-2.0
#include "training/step_program.h"

#include <algorithm>
#include <map>

#include "core/base/status_macros.h"
#include "training/gradient/gradient_builder.h"
#include "training/gradient/training_mode.h"
#include "training/kernels/training_ops.h"

namespace caesura {
namespace {

// Writes the part behind the gradients: accumulation, clipping, updates, statistics.
class UpdateWriter {
 public:
  UpdateWriter(Graph& graph, const StepOptions& options, StepProgram& program)
      : graph_(graph), options_(options), program_(program) {}

  // Where the loss is scaled: 1 / scale as a float64 value. To be called first.
  void Unscale(Value* loss_scale);
  // The gradient as the caller shall see it.
  Value* Handed(Value* gradient);
  void Accumulate(std::vector<Value*>& gradients);
  void Update(const std::vector<Value*>& gradients);
  void Assign(Value* target, Value* value) { Act("Assign", {target, value}, {}, 1); }

 private:
  struct Group {
    Optimizer optimizer;
    double learning_rate_scale;
    std::vector<int> members;  // indices of trained parameters
  };
  std::vector<Group> Groups() const;
  Value* Scale(const std::vector<Value*>& gradients);
  void UpdateGroup(const Group& group, const std::vector<Value*>& gradients, Value* learning_rate, Value* step,
                   Value* scale);
  Value* State(const std::string& name, const Value* like);
  // A node of ONNX behind the backward part.
  Value* Op(const std::string& op_type, std::vector<Value*> inputs, ValueType type, AttributeMap attributes = {});
  Node* Act(const std::string& op_type, std::vector<Value*> inputs, AttributeMap attributes, int outputs);

  Graph& graph_;
  const StepOptions& options_;
  StepProgram& program_;
  Value* inverse_scale_ = nullptr;  // of the loss
};

Value* UpdateWriter::Op(const std::string& op_type, std::vector<Value*> inputs, ValueType type,
                        AttributeMap attributes) {
  Node* node = graph_.AddOp(op_type, std::move(inputs), std::move(attributes));
  node->set_phase(Phase::kOptimizer);
  node->output(0)->set_type(std::move(type));
  return node->output(0);
}

Node* UpdateWriter::Act(const std::string& op_type, std::vector<Value*> inputs, AttributeMap attributes, int outputs) {
  Node* node = graph_.AddOp(op_type, std::move(inputs), std::move(attributes), kTrainingDomain, outputs, op_type);
  node->set_phase(Phase::kOptimizer);
  return node;
}

// A tensor of zeros that lives in the ParameterSet.
Value* UpdateWriter::State(const std::string& name, const Value* like) {
  const Tensor& parameter = *graph_.Initializer(like);
  program_.parameters.push_back(name);
  return graph_.AddInitializer(name, Tensor::Zeros(parameter.dtype(), parameter.shape()));
}

void UpdateWriter::Unscale(Value* loss_scale) {
  const ValueType wide = ValueType::Tensor(DType::kFloat64, Shape{});
  Value* scale = Op("Cast", {loss_scale}, wide, {{"to", static_cast<int64_t>(DType::kFloat64)}});
  inverse_scale_ = Op("Reciprocal", {scale}, wide);
}

Value* UpdateWriter::Handed(Value* gradient) {
  if (inverse_scale_ == nullptr) return gradient;
  return Op("Mul", {gradient, Op("CastLike", {inverse_scale_, gradient}, ValueType::Tensor(gradient->dtype(), Shape{}))},
            gradient->type());
}

void UpdateWriter::Accumulate(std::vector<Value*>& gradients) {
  Value* reset = graph_.AddInput(kResetInput, ValueType::Tensor(DType::kBool, Shape{}));
  for (int i = 0; i < program_.trained; ++i) {
    const Value* parameter = graph_.FindValue(program_.parameters[i]);
    Value* buffer = State("accumulator." + parameter->name(), parameter);
    Node* node = Act("InPlaceAccumulator", {buffer, gradients[i], reset}, {}, 1);
    gradients[i] = node->output(0);
    gradients[i]->set_type(parameter->type());
  }
}

std::vector<UpdateWriter::Group> UpdateWriter::Groups() const {
  // Parameters of one op share a dtype, so a group is split by it.
  std::map<std::pair<int, DType>, Group> groups;
  const int own = static_cast<int>(options_.groups.size());
  for (int i = 0; i < program_.trained; ++i) {
    const std::string& name = program_.parameters[i];
    int chosen = own;
    for (int g = own - 1; g >= 0; --g) {
      const auto& names = options_.groups[g].names;
      if (std::any_of(names.begin(), names.end(), [&](const auto& p) { return MatchesName(p, name); })) chosen = g;
    }
    Group& group = groups[{chosen, graph_.Initializer(graph_.FindValue(name))->dtype()}];
    group.optimizer = chosen == own ? options_.optimizer : ForGroup(options_.optimizer, options_.groups[chosen]);
    group.learning_rate_scale = chosen == own ? 1 : options_.groups[chosen].learning_rate_scale;
    group.members.push_back(i);
  }
  std::vector<Group> out;
  for (auto& [key, group] : groups) {
    if (options_.commit == CommitMode::kLate) {
      out.push_back(std::move(group));
      continue;
    }
    for (int member : group.members) out.push_back({group.optimizer, group.learning_rate_scale, {member}});
  }
  return out;
}

Value* UpdateWriter::Scale(const std::vector<Value*>& gradients) {
  const ValueType wide = ValueType::Tensor(DType::kFloat64, Shape{});
  Value* factor = options_.accumulation_steps == 0
                      ? graph_.AddInput(kGradientFactorInput, wide)
                      : graph_.AddInitializer("caesura.gradient_factor",
                                              Tensor::Scalar<double>(1.0 / options_.accumulation_steps));
  if (inverse_scale_ != nullptr) factor = Op("Mul", {factor, inverse_scale_}, wide);
  if (options_.clip_norm <= 0 && inverse_scale_ == nullptr) return factor;
  Value* norm = Act("GlobalNorm", gradients, {}, 1)->output(0);
  AttributeMap attributes;
  if (options_.clip_norm > 0) attributes["max_norm"] = Tensor::Scalar<double>(options_.clip_norm);
  if (inverse_scale_ != nullptr) attributes["skip_nonfinite"] = int64_t{1};
  Node* scale = Act("ClipScale", {norm, factor}, std::move(attributes), 1);
  scale->output(0)->set_type(wide);
  return scale->output(0);
}

void UpdateWriter::UpdateGroup(const Group& group, const std::vector<Value*>& gradients, Value* learning_rate,
                               Value* step, Value* scale) {
  const OptimizerUpdate update = DescribeUpdate(group.optimizer);
  if (group.learning_rate_scale != 1) {
    Value* factor = graph_.AddInitializer("caesura.learning_rate_scale",
                                          Tensor::Scalar<double>(group.learning_rate_scale));
    learning_rate = Op("Mul", {learning_rate, factor}, ValueType::Tensor(DType::kFloat64, Shape{}));
  }
  std::vector<Value*> inputs = {learning_rate, step, scale};
  std::vector<Value*> parameters, members;
  for (int i : group.members) parameters.push_back(graph_.FindValue(program_.parameters[i]));
  for (int i : group.members) members.push_back(gradients[i]);
  inputs.insert(inputs.end(), parameters.begin(), parameters.end());
  inputs.insert(inputs.end(), members.begin(), members.end());
  for (const std::string& state : update.states) {
    for (const Value* parameter : parameters) {
      inputs.push_back(State("optimizer." + state + "." + parameter->name(), parameter));
    }
  }
  AttributeMap attributes = update.coefficients;
  attributes["count"] = static_cast<int64_t>(parameters.size());
  if (inverse_scale_ != nullptr) attributes["skip_nonfinite"] = int64_t{1};
  Act(update.op_type, inputs, std::move(attributes), static_cast<int>(parameters.size() * (1 + update.states.size())));
}

void UpdateWriter::Update(const std::vector<Value*>& gradients) {
  Value* learning_rate = graph_.AddInput(kLearningRateInput, ValueType::Tensor(DType::kFloat64, Shape{}));
  Value* step = graph_.AddInput(kStepInput, ValueType::Tensor(DType::kInt64, Shape{}));
  Value* scale = Scale(gradients);
  if (inverse_scale_ != nullptr) graph_.AddOutput(scale);
  for (const Group& group : Groups()) UpdateGroup(group, gradients, learning_rate, step, scale);
}

}  // namespace

Result<std::vector<Value*>> FindOutputs(const Graph& graph, const std::vector<std::string>& names) {
  std::vector<Value*> found;
  std::string unknown;
  for (const std::string& name : names) {
    const auto& outputs = graph.outputs();
    auto it = std::find_if(outputs.begin(), outputs.end(), [&](const Value* output) { return output->name() == name; });
    if (it == outputs.end()) {
      unknown += " '" + name + "'";
    } else {
      found.push_back(*it);
    }
  }
  if (unknown.empty()) return found;
  std::string known;
  for (const Value* output : graph.outputs()) known += " '" + output->name() + "'";
  return InvalidArgument("the model has no output" + unknown + "; its outputs are" + known);
}

Result<DType> PrecisionByName(const std::string& name) {
  if (name == "fp32") return DType::kFloat32;
  if (name == "bf16") return DType::kBFloat16;
  if (name == "fp16") return DType::kFloat16;
  return InvalidArgument("precision '" + name + "' is none of fp32, bf16, fp16");
}

bool IsProgramInput(const std::string& name) {
  const std::string own[] = {kLearningRateInput, kStepInput, kResetInput, kGradientFactorInput, kLossScaleInput};
  return std::find(std::begin(own), std::end(own), name) != std::end(own);
}

Result<StepProgram> BuildStepProgram(const Model& model, const std::vector<std::string>& trainable,
                                     const StepOptions& options, bool with_update) {
  if (options.commit == CommitMode::kEagerConsume && options.clip_norm > 0) {
    return InvalidArgument("clipping by the global norm needs all gradients: use CommitMode::kLate");
  }
  if (options.commit == CommitMode::kEagerConsume && options.scales_loss()) {
    return InvalidArgument("whether all scaled gradients are finite shows behind the last one: use CommitMode::kLate");
  }
  StepProgram program;
  program.graph = model.graph->Clone();
  Graph& graph = *program.graph;
  ASSIGN_OR_RETURN(const std::vector<StatisticUpdate> statistics, SwitchToTraining(graph));
  ASSIGN_OR_RETURN(Value * loss, AddLoss(graph, options.loss));
  GradientOptions gradient_options;
  Value* loss_scale = nullptr;
  if (options.scales_loss()) loss_scale = graph.AddInput(kLossScaleInput, ValueType::Tensor(DType::kFloat32, Shape{}));
  gradient_options.ys = {{loss, loss_scale}};
  for (const std::string& name : trainable) gradient_options.xs.push_back(graph.FindValue(name));
  ASSIGN_OR_RETURN(const GradientGraph gradient, BuildGradient(graph, gradient_options));

  program.parameters = trainable;
  program.trained = static_cast<int>(trainable.size());
  for (const StatisticUpdate& statistic : statistics) program.parameters.push_back(statistic.target->name());
  program.statistics = static_cast<int>(statistics.size());

  std::vector<Value*> gradients = gradient.dxs;
  ASSIGN_OR_RETURN(const std::vector<Value*> kept, FindOutputs(graph, options.keep_outputs));
  graph.ClearOutputs();
  graph.AddOutput(loss);
  for (Value* output : kept) graph.AddOutput(output);
  UpdateWriter writer(graph, options, program);
  if (loss_scale != nullptr) writer.Unscale(loss_scale);
  if (options.accumulation_steps != 1) writer.Accumulate(gradients);
  if (options.keep_gradients) {
    for (Value* dx : gradients) graph.AddOutput(writer.Handed(dx));
  }
  if (with_update) writer.Update(gradients);
  for (const StatisticUpdate& statistic : statistics) writer.Assign(statistic.target, statistic.value);
  return program;
}

}  // namespace caesura
