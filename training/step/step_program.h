// SPDX-License-Identifier: Apache-2.0
// The whole step as one graph: forward, loss, backward, clipping, optimizer.
#ifndef CAESURA_TRAINING_STEP_STEP_PROGRAM_H_
#define CAESURA_TRAINING_STEP_STEP_PROGRAM_H_

#include <string>
#include <vector>

#include "core/execute/parameter_set.h"
#include "core/graph/graph.h"
#include "training/step/parameter_shard.h"
#include "training/step/rank_setup.h"
#include "training/step/step_options.h"

namespace caesura {

// Inputs that the program adds to the model's.
inline constexpr char kLearningRateInput[] = "caesura.learning_rate";  // float64 scalar
inline constexpr char kCoefficientsInput[] =
    "caesura.coefficients";  // float64 [(groups + 1) * fed], where any is fed
inline constexpr char kStepInput[] = "caesura.step";  // int64 scalar, counts updates from 1
// A coefficient that steps may be fed of a group of parameters: how many updates more than
// kStepInput says these have had. Below 0: fewer.
inline constexpr char kStepOffset[] = "step_offset";
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
  // outputs and the gradients that are kept; then, of a program that updates, with clip_norm the
  // global norm before clipping (float64), and where the loss is scaled what gradients are
  // multiplied with (float64; not finite: the update was skipped).
  std::shared_ptr<Graph> graph;
  // The names of the entries of the ParameterSet that the program reads and writes, in its
  // order: trained parameters, running statistics, accumulators ("accumulator.NAME"), optimizer
  // state ("optimizer.exp_avg.NAME"). Those of a program that only accumulates are the first ones
  // of the program that updates.
  std::vector<std::string> parameters;
  // With other ranks, the gradients of each bucket that they sum, by the names of their parameters
  // and in its order; "loss" is one of them. Those of divided state are in `shards`.
  std::vector<std::vector<std::string>> buckets;
  std::vector<ParameterShard> shards;  // where optimizer state is divided among ranks
  int trained = 0;                     // how many of them are trained parameters
  int statistics = 0;                  // and running statistics
};

// The graph's outputs of these names, in their order. Fails listing all names that are none.
Result<std::vector<Value*>> FindOutputs(const Graph& graph, const std::vector<std::string>& names);

// Builds the step of one of the ranks of `setup`. `with_update` false: the program of a micro-step
// that only accumulates. The model's types
// must have been inferred, and the pass of options.precision must have run on it. The
// caller has refused options that do not go together.
Result<StepProgram> BuildStepProgram(const Model& model, const std::vector<std::string>& trainable,
                                     const StepOptions& options, bool with_update,
                                     const RankSetup& setup = {});

}  // namespace caesura

#endif  // CAESURA_TRAINING_STEP_STEP_PROGRAM_H_
