// SPDX-License-Identifier: Apache-2.0
// The whole step as one graph: forward, loss, backward, clipping, optimizer.
#ifndef CAESURA_TRAINING_STEP_STEP_PROGRAM_H_
#define CAESURA_TRAINING_STEP_STEP_PROGRAM_H_

#include <string>
#include <vector>

#include "core/execute/parameter_set.h"
#include "core/graph/graph.h"
#include "training/step/loss.h"
#include "training/optimizer/grad_scaler.h"
#include "training/optimizer/optimizer.h"
#include "training/step/parameter_shard.h"
#include "training/step/rank_plan.h"
#include "training/step/trainable.h"

namespace caesura {

// When a step writes to parameters; chosen when the program is built.
enum class CommitMode {
  kLate,  // after all gradients and the clipping: what may fail comes first, and changes nothing
  kEagerConsume,  // each parameter as soon as its gradient is there and nothing else reads it:
                  // least memory, no clipping by global norm; without TrainingOptions::undo a step
                  // that fails in the middle is lost, and says so
};

// The mean that an update goes by, where several micro-steps or ranks have a batch each.
enum class MeanOver {
  kBatches,  // each batch counts alike, whatever its size
  kTokens,   // each element that a loss is the mean of counts alike (AddLossCount): of cross
             // entropy the targets that are not ignored
};

// The options of a training step: loss, optimizer, parameter groups, clipping, accumulation and
// precision. Not all go together: CheckConflicts (training/session/option_table.h).
struct StepOptions : TrainableOptions {
  Loss loss;
  Optimizer optimizer = AdamW{};
  std::vector<ParameterGroup> groups;
  // Coefficients ("learning_rate" among them) that each step is given, a row a group and a last one
  // for the parameters of none: StepRuns::coefficients(). They take the place of the
  // optimizers' own, and of the schedule. Empty: none is.
  std::vector<std::string> fed_coefficients;
  double clip_norm = 0;  // 0: gradients are not clipped
  // Micro-steps to one update; their mean gradient counts. 0: the caller decides
  // (TrainingSession::Accumulate).
  int accumulation_steps = 1;
  MeanOver mean_over = MeanOver::kBatches;
  CommitMode commit = CommitMode::kLate;
  // A step whose loss or gradients are not finite fails before it has written anything. Reads all
  // gradients once more, unless they are clipped. Needs kLate, and no scaled loss, which has a rule
  // of its own.
  bool refuse_nonfinite = false;
  // Running variances are updated with the unbiased variance, as PyTorch's batch norms are; false:
  // with the biased one, as ONNX's are.
  bool unbiased_statistics = false;
  // Also hand out the gradient of each parameter ("gradient.NAME").
  bool keep_gradients = false;
  // Outputs of the model that a step also hands out, by name.
  std::vector<std::string> keep_outputs;
  // The dtype in which products, convolutions and attention compute
  // (graph_transforms/precision/mixed_precision.h): float32, bfloat16, or float16, whose small
  // gradients are saved by a scaled loss. Parameters, optimizer state, losses and norms stay
  // float32.
  DType precision = DType::kFloat32;
  // kBFloat16: the ranks exchange gradients in it, half the bytes of float32. They are rounded to
  // it, and so are their sums (docs/guides/step_ranks.md). kUndefined: in their own dtype.
  DType exchange_dtype = DType::kUndefined;
  // With divided state: the parameters of each bucket, as another session that trains the same ones
  // has them (SessionParameters::shards): then the two may share their state. Empty: buckets follow
  // from the order in which gradients are ready.
  std::vector<std::vector<std::string>> shard_buckets;
  // Trained parameters of which each rank has its own part, as tensor-parallel models do, whose
  // forward exchanges what the parts make (AllReduce and so on, core/ops).
  // Their gradients and state are the rank's own; their norms count once each. An update goes by
  // the gradient of the mean of all ranks' losses. Not with divided state or ordered sums.
  std::vector<std::string> rank_parts;
  // With float16: an update whose gradients are not all finite does not happen and lowers the
  // scale. Needs kLate.
  GradScalerOptions loss_scaling;

  bool scales_loss() const { return precision == DType::kFloat16; }
};

// Inputs that the program adds to the model's.
inline constexpr char kLearningRateInput[] = "caesura.learning_rate";  // float64 scalar
inline constexpr char kCoefficientsInput[] =
    "caesura.coefficients";  // float64 [(groups + 1) * fed], where any is fed
inline constexpr char kStepInput[] = "caesura.step";  // int64 scalar, counts updates from 1
inline constexpr char kResetInput[] =
    "caesura.reset";  // bool scalar: the first micro-step of an update
inline constexpr char kMicroStepInput[] =
    "caesura.micro_step";  // int64 scalar, of an update from 0 on; with logical_shards
// float64 scalar, what the accumulated gradients are multiplied with; where the caller decides when
// to update.
inline constexpr char kGradientFactorInput[] = "caesura.gradient_factor";
// float64 scalar, 1 / ranks: what sums over all ranks are multiplied with.
inline constexpr char kRankShareInput[] = "caesura.rank_share";
inline constexpr char kLossScaleInput[] =
    "caesura.loss_scale";  // float32 scalar, where the loss is scaled

// True if `name` is one of the inputs above.
bool IsProgramInput(const std::string& name);

// A training step as one graph, and the parameters that it reads and writes. The caller owns both.
struct StepProgram {
  // Outputs: the loss (not scaled; of a program that updates the mean over all ranks, where there
  // are others; with logical_shards or MeanOver::kTokens over all micro-steps, too), then the
  // outputs and the gradients that are kept; then, where the loss is scaled and the program
  // updates, what gradients are multiplied with (float64; not finite: the update was skipped).
  std::shared_ptr<Graph> graph;
  // The names of the entries of the ParameterSet that the program reads and writes, in its
  // order: trained parameters, running statistics, accumulators ("accumulator.NAME"), optimizer
  // state ("optimizer.exp_avg.NAME"). Those of a program that only accumulates are the first ones
  // of the program that updates.
  std::vector<std::string> parameters;
  std::vector<ParameterShard> shards;  // where optimizer state is divided among ranks
  int trained = 0;                     // how many of them are trained parameters
  int statistics = 0;                  // and running statistics
};

// The graph's outputs of these names, in their order. Fails listing all names that are none.
Result<std::vector<Value*>> FindOutputs(const Graph& graph, const std::vector<std::string>& names);

// Builds the step of one of the ranks of `plan`. `with_update` false: the program of a micro-step
// that only accumulates. The model's types
// must have been inferred, and the pass of options.precision must have run on it. The
// caller has refused options that do not go together.
Result<StepProgram> BuildStepProgram(const Model& model, const std::vector<std::string>& trainable,
                                     const StepOptions& options, bool with_update,
                                     const RankPlan& plan = {});

}  // namespace caesura

#endif  // CAESURA_TRAINING_STEP_STEP_PROGRAM_H_
