// SPDX-License-Identifier: Apache-2.0
// StepOptions: the options of a training step, with its loss and the parameters that it trains.
#ifndef CAESURA_TRAINING_STEP_STEP_OPTIONS_H_
#define CAESURA_TRAINING_STEP_STEP_OPTIONS_H_

#include <cstdint>
#include <string>
#include <vector>

#include "core/base/status.h"
#include "core/tensor/dtype.h"
#include "training/optimizer/optimizer.h"

namespace caesura {

// The mean over the batch of a loss between a model output (`prediction`; empty: the first one) and
// a new input named `target`.
struct Loss {
  // The formula of the loss.
  enum class Kind {
    kCrossEntropy,  // scores and integer classes (ONNX SoftmaxCrossEntropyLoss, torch
                    // cross_entropy)
    kMeanSquaredError,
    kMeanAbsoluteError,
    kBinaryCrossEntropyLogits,  // torch binary_cross_entropy_with_logits
    kOutput,  // the model's own scalar output `prediction` is the loss; `target` is not used
  };
  Kind kind = Kind::kCrossEntropy;
  std::string prediction = "";
  std::string target = "target";
  int64_t ignore_index = -100;  // kCrossEntropy: targets with this class do not count
  // kCrossEntropy: the axis of the scores that holds the classes; below 0: from the end. Targets
  // have the other axes.
  int class_axis = 1;
  // Further terms, PREDICTION=TARGET or PREDICTION=TARGET*WEIGHT: the weight (1) times the same
  // loss between another output and target is added. Not with kOutput.
  std::vector<std::string> also = {};

  static Loss CrossEntropy(std::string target = "target") {
    return {Kind::kCrossEntropy, "", std::move(target)};
  }
  static Loss MeanSquaredError(std::string target = "target") {
    return {Kind::kMeanSquaredError, "", std::move(target)};
  }
  static Loss Output(std::string name) { return {Kind::kOutput, std::move(name), ""}; }
};

// Selects the values of a model that are trained.
struct TrainableOptions {
  // Names of initializers to train ('*' matches anything). Empty: every floating initializer of
  // rank >= 1 that a gradient reaches as a weight (scales of quantization and of Resize are none),
  // that is no running statistic and that the model does not mark as a buffer (MarkedBuffers,
  // core/onnx/model_reader.h).
  std::vector<std::string> trainable = {};
  std::vector<std::string> frozen = {};  // taken out of the above
  // Floating Constant nodes of rank >= 1 that gradients reach become initializers, named as the
  // nodes' outputs, and are trained like the others: exporters write weights there, too, and tables
  // that `frozen` may name.
  bool train_constants = false;
  // With other ranks: their models may use other trained parameters. Each of StepOptions::groups is
  // a row of parameters that go together: a step leaves a row, with its state, as it is where no
  // rank uses it (RankGroup::set_uses). So gradients need not reach a trained parameter here. Needs
  // `buckets`, each of them of one row, CommitMode::kLate and sums of any order.
  bool skips_unused = false;
};

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
// precision. Not all go together: CheckConflicts (training/session/training_options.h).
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
  // True: a step hands out the gradient of each parameter, too ("gradient.NAME").
  bool keep_gradients = false;
  // True: a step is fed the gradient of each trained parameter ("gradient.NAME", of its dtype and
  // shape), and only clips and updates. No backward is built, so the loss is a number that depends
  // on no parameter, an output of the model (Loss::Output), and `trainable` names initializers.
  bool gradient_inputs = false;
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
  // With other ranks: the parameters of each bucket, in the order in which buckets are exchanged.
  // With divided state they may be those of another session that trains the same parameters
  // (SessionParameters::shards): then the two may share their state. Empty: buckets follow from the
  // order in which gradients are ready.
  std::vector<std::vector<std::string>> buckets;
  // With skips_unused: initializers that other ranks' models update as running statistics. A step
  // takes these from rank 0, too.
  std::vector<std::string> statistics;
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

}  // namespace caesura

#endif  // CAESURA_TRAINING_STEP_STEP_OPTIONS_H_
