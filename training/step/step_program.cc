// SPDX-License-Identifier: Apache-2.0
#include "training/step/step_program.h"

#include <algorithm>
#include <map>

#include "core/base/status_macros.h"
#include "core/gradient/gradient_builder.h"
#include "core/gradient/training_mode.h"

#include "training/step/loss.h"
#include "training/step/update_writer.h"

namespace caesura {
namespace {

// The value as it is before any parameter changes: a copy where it may lie in a parameter's own
// bytes, as views do.
Value* BeforeUpdates(Graph& graph, Value* value) {
  const Value* from = value;
  while (from->producer() != nullptr) {
    const std::vector<Value*>& inputs = from->producer()->inputs();
    if (inputs.empty() || inputs[0] == nullptr || inputs[0]->dtype() != from->dtype()) return value;
    const auto is_number = [](const Value* input) {
      return input != nullptr && kFloatTypes.Contains(input->dtype());
    };
    if (std::count_if(inputs.begin(), inputs.end(), is_number) > 1) return value;
    from = inputs[0];
  }
  if (graph.Initializer(from) == nullptr) return value;
  Node* copy = graph.AddOp("Copy", {value}, {}, kCaesuraDomain, 1, "Copy");
  copy->output(0)->set_type(value->type());
  return copy->output(0);
}

// The gradient that the backward begins with: count * scale.
Value* SeedOf(Graph& graph, Value* count, Value* scale) {
  if (scale == nullptr) return count;
  Node* node = graph.AddOp("Mul", {count, scale});
  node->output(0)->set_type(count->type());
  return node->output(0);
}

Status CheckRanks(const StepOptions& options, const RankSetup& setup,
                  const std::vector<std::string>& trainable) {
  if (setup.has_others() && !options.rank_parts.empty())
    RETURN_IF_ERROR(UpdateWriter::CheckRankParts(options, trainable));
  if (setup.has_others() && !options.buckets.empty())
    RETURN_IF_ERROR(UpdateWriter::CheckBuckets(options, setup, trainable));
  if (setup.divides_state) RETURN_IF_ERROR(UpdateWriter::CheckSharding(options));
  if (DTypeSet{DType::kUndefined, DType::kBFloat16}.Contains(options.exchange_dtype)) return {};
  return InvalidArgument(std::string("exchange_dtype: expected bfloat16 or none, got ") +
                         DTypeName(options.exchange_dtype));
}

// Adds statistics that only other ranks' models update: they become what they are, and then rank
// 0's. All ranks have the same ones in one order.
Status AddOthers(const Graph& graph, const std::vector<std::string>& names,
                 std::vector<StatisticUpdate>* statistics) {
  if (names.empty()) return {};
  for (const std::string& name : names) {
    Value* value = graph.FindValue(name);
    if (value == nullptr || graph.Initializer(value) == nullptr)
      return InvalidArgument("statistics: the model has no initializer '" + name + "'");
    const bool is_own = std::any_of(statistics->begin(), statistics->end(),
                                    [&](const auto& own) { return own.target == value; });
    if (!is_own) statistics->push_back({value, value});
  }
  std::sort(statistics->begin(), statistics->end(),
            [](const auto& a, const auto& b) { return a.target->name() < b.target->name(); });
  return {};
}

// The loss of a step and its gradients, before any update.
struct Backward {
  Value* loss = nullptr;
  Value* loss_scale = nullptr;  // an input; null: the loss is not scaled
  Value* count = nullptr;       // the terms of the loss; null: its mean is over the batch
  std::vector<Value*> gradients;
};

Result<Backward> AddBackward(Graph& graph, const StepOptions& options, bool is_alone,
                             const std::vector<std::string>& trainable) {
  Backward out;
  ASSIGN_OR_RETURN(out.loss, AddLoss(graph, options.loss));
  if (options.gradient_inputs) {
    for (const std::string& name : trainable)
      out.gradients.push_back(graph.AddInput("gradient." + name, graph.FindValue(name)->type()));
    return out;
  }
  if (options.scales_loss())
    out.loss_scale = graph.AddInput(kLossScaleInput, ValueType::Tensor(DType::kFloat32, Shape{}));
  // A batch alone needs no count: its loss is the mean already.
  if (options.mean_over == MeanOver::kTokens && !is_alone) {
    ASSIGN_OR_RETURN(out.count, AddLossCount(graph, options.loss, *out.loss));
  }
  GradientOptions gradient_options;
  gradient_options.ys = {
      {out.loss, out.count == nullptr ? out.loss_scale : SeedOf(graph, out.count, out.loss_scale)}};
  for (const std::string& name : trainable) gradient_options.xs.push_back(graph.FindValue(name));
  ASSIGN_OR_RETURN(GradientGraph gradient, BuildGradient(graph, gradient_options));
  out.gradients = std::move(gradient.dxs);
  return out;
}

}  // namespace

Result<std::vector<Value*>> FindOutputs(const Graph& graph, const std::vector<std::string>& names) {
  std::vector<Value*> found;
  std::string unknown;
  for (const std::string& name : names) {
    const auto& outputs = graph.outputs();
    auto it = std::find_if(outputs.begin(), outputs.end(),
                           [&](const Value* output) { return output->name() == name; });
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

bool IsProgramInput(const std::string& name) {
  const std::string own[] = {kLearningRateInput, kCoefficientsInput, kStepInput,
                             kResetInput,        kMicroStepInput,    kGradientFactorInput,
                             kLossScaleInput,    kRankShareInput};
  return std::find(std::begin(own), std::end(own), name) != std::end(own);
}

Result<StepProgram> BuildStepProgram(const Model& model, const std::vector<std::string>& trainable,
                                     const StepOptions& options, bool with_update,
                                     const RankSetup& setup) {
  RETURN_IF_ERROR(CheckRanks(options, setup, trainable));
  const bool has_ranks = setup.has_others();
  const int micro_steps = setup.MicroSteps(options.accumulation_steps);
  const bool is_early = options.commit == CommitMode::kEagerConsume;
  const bool is_ordered = setup.is_ordered();
  StepProgram program;
  program.graph = model.graph->Clone();
  Graph& graph = *program.graph;
  ASSIGN_OR_RETURN(std::vector<StatisticUpdate> statistics,
                   SwitchToTraining(graph, {.unbiased_statistics = options.unbiased_statistics}));
  if (has_ranks) RETURN_IF_ERROR(AddOthers(graph, options.statistics, &statistics));
  if (is_ordered && !statistics.empty()) {
    return Unsupported("logical_shards: the running statistics ('" +
                       statistics.front().target->name() +
                       "') are those of one rank's batches, so they depend on the number of ranks");
  }
  ASSIGN_OR_RETURN(Backward backward,
                   AddBackward(graph, options, !has_ranks && micro_steps == 1, trainable));
  Value* loss = backward.loss;
  Value* count = backward.count;
  const bool counts = count != nullptr;
  std::vector<Value*>& gradients = backward.gradients;

  program.parameters = trainable;
  program.trained = static_cast<int>(trainable.size());
  for (const StatisticUpdate& statistic : statistics)
    program.parameters.push_back(statistic.target->name());
  program.statistics = static_cast<int>(statistics.size());

  ASSIGN_OR_RETURN(const std::vector<Value*> kept, FindOutputs(graph, options.keep_outputs));
  graph.ClearOutputs();
  std::vector<Value*> left;  // in the statistics' targets
  for (const StatisticUpdate& statistic : statistics)
    left.push_back(BeforeUpdates(graph, statistic.value));
  UpdateWriter writer(graph, options, setup, program);
  if (backward.loss_scale != nullptr) writer.Unscale(backward.loss_scale);
  Value* sum = counts ? writer.Weighted(loss, count) : loss;
  std::vector<Value**> totals = {&sum};
  if (counts) totals.push_back(&count);
  const bool sums_losses = counts || is_ordered;  // over micro-steps, too
  if (options.refuse_nonfinite && !has_ranks) writer.RequireFinite(gradients, sum);
  const bool by_parts = setup.divides_state && setup.divides_sums;
  if (by_parts) writer.ReduceParts(gradients);
  if (micro_steps != 1) {
    writer.Accumulate(gradients, sums_losses ? totals : std::vector<Value**>(), with_update);
  }
  if (has_ranks && with_update) writer.Reduce(gradients, totals, left);
  if (counts) writer.DivideBy(count);
  if (with_update && sums_losses) loss = writer.MeanLoss(sum);
  else if (with_update && has_ranks) loss = writer.MeanLossOfRanks(sum);
  if (with_update && has_ranks && is_early) loss = writer.AgreedAtLast(loss);
  if (options.refuse_nonfinite && has_ranks) writer.RequireFinite(gradients, loss);
  graph.AddOutput(BeforeUpdates(graph, loss));
  for (Value* output : kept) graph.AddOutput(BeforeUpdates(graph, output));
  if (options.keep_gradients) {
    for (Value* dx : gradients) graph.AddOutput(writer.ForCaller(dx));
  }
  if (with_update) writer.Update(gradients);
  for (size_t i = 0; i < left.size(); ++i) writer.Assign(statistics[i].target, left[i]);
  return program;
}

}  // namespace caesura
