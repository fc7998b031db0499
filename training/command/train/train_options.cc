// SPDX-License-Identifier: Apache-2.0
#include "training/command/train/train_options.h"

#include <csignal>
#include <map>

#include <CLI/CLI.hpp>

#include "core/base/status_macros.h"
#include "training/command/command.h"

namespace caesura::command {
namespace {

std::map<std::string, Loss::Kind> Losses() {
  return {{"cross_entropy", Loss::Kind::kCrossEntropy},
          {"mse", Loss::Kind::kMeanSquaredError},
          {"l1", Loss::Kind::kMeanAbsoluteError},
          {"bce_with_logits", Loss::Kind::kBinaryCrossEntropyLogits},
          {"output", Loss::Kind::kOutput}};
}

void AddValidationOptions(CLI::App& app, TrainOptions* o) {
  const std::string group = "Data";
  app.add_option("--validation", o->validation, "A file of examples to validate with")
      ->group(group);
  app.add_option("--validation-part", o->validation_part,
                 "Without --validation: the part of the data held out for it "
                 "(drawn at random; the end of a text); 0: none")
      ->check(CLI::Range(0.0, 0.9))
      ->capture_default_str()
      ->group(group);
}

void AddOptimizerOptions(CLI::App& app, TrainOptions* o) {
  const std::string group = "Optimizer";
  AddOptimizerOption(app, o);
  app.add_option("--lr", o->learning_rate,
                 "Learning rate; by default the optimizer's, as in PyTorch")
      ->group(group);
  app.add_option("--weight-decay", o->weight_decay, "Weight decay")->group(group);
  app.add_option("--momentum", o->momentum, "Momentum of sgd and rmsprop")->group(group);
  app.add_flag("--nesterov", o->nesterov, "Nesterov's momentum, for sgd")->group(group);
  app.add_option("--beta1", o->beta1, "For adam, adamw, lamb, lion")->group(group);
  app.add_option("--beta2", o->beta2, "For adam, adamw, lamb, lion")->group(group);
  app.add_option("--epsilon", o->epsilon, "For adam, adamw, lamb, rmsprop")->group(group);
  app.add_option("--schedule", o->schedule,
                 "Course of the learning rate: constant, linear, cosine, polynomial or step")
      ->check(CLI::IsMember({"constant", "linear", "cosine", "polynomial", "step"}))
      ->capture_default_str()
      ->group(group);
  app.add_option("--warmup", o->warmup, "Updates over which the rate rises from 0")
      ->check(CLI::NonNegativeNumber)
      ->group(group);
  app.add_option("--clip", o->clip, "Largest norm of all gradients together; 0: not clipped")
      ->check(CLI::NonNegativeNumber)
      ->group(group);
  app.add_option("--accumulate", o->accumulate, "Batches to one update")
      ->check(CLI::PositiveNumber)
      ->capture_default_str()
      ->group(group);
  app.add_option("--trainable", o->trainable,
                 "Parameters to train ('*' matches anything); by default all")
      ->allow_extra_args(false)
      ->group(group);
  app.add_option("--frozen", o->frozen, "Parameters that stay as they are")
      ->allow_extra_args(false)
      ->group(group);
  app.add_flag("--train-constants", o->train_constants,
               "Train floating Constant nodes that gradients reach, too, by their outputs' names")
      ->group(group);
  app.add_flag("--eager", o->eager,
               "Update each parameter as soon as its gradient is there: least memory, no --clip")
      ->group(group);
}

void AddPrecisionOptions(CLI::App& app, TrainOptions* o) {
  const std::string group = "Run";
  app.add_option("--precision", o->precision,
                 "What products, convolutions and attention compute in: fp32, bf16, or fp16 with a "
                 "scaled loss; "
                 "parameters and optimizer stay fp32")
      ->check(CLI::IsMember({"fp32", "bf16", "fp16"}))
      ->capture_default_str()
      ->group(group);
  app.add_flag("--refuse-nonfinite", o->refuse_nonfinite,
               "End the run before a step whose loss or gradients are not finite has changed "
               "anything; reads all gradients once more")
      ->group(group);
  app.add_option("--memory-budget", o->memory_budget,
                 "Bytes for a step's activations, gradients and scratch (as 'caesura inspect' "
                 "reports them); parts of "
                 "the forward are computed again in the backward to keep within; 0: no limit")
      ->capture_default_str()
      ->group(group);
}

void AddRunOptions(CLI::App& app, TrainOptions* o) {
  const std::string group = "Run";
  app.add_option("--epochs", o->epochs, "Passes over the data")
      ->check(CLI::PositiveNumber)
      ->capture_default_str()
      ->group(group);
  app.add_option("--steps", o->steps, "Updates, in place of --epochs")
      ->check(CLI::PositiveNumber)
      ->group(group);
  app.add_option("--batch", o->batch, "Examples to a batch")
      ->check(CLI::PositiveNumber)
      ->capture_default_str()
      ->group(group);
  app.add_option("--validate-every", o->validate_every,
                 "Updates between validations; by default an epoch")
      ->check(CLI::PositiveNumber)
      ->group(group);
  AddPrecisionOptions(app, o);
  app.add_option("--seed", o->seed, "Of order, held-out part and random ops")
      ->capture_default_str()
      ->group(group);
  AddPlacementOptions(app, o, group);
  app.add_option(
         "--shard", o->shard,
         "With several processes: 1 divides the optimizer state among them, 2 also accumulated "
         "gradients")
      ->check(CLI::Range(0, 3))
      ->capture_default_str()
      ->group(group);
  app.add_option("--mean-over", o->mean_over,
                 "The mean that an update of several batches goes by: of the batches, or of all "
                 "tokens that the loss counts")
      ->check(CLI::IsMember({"batches", "tokens"}))
      ->capture_default_str()
      ->group(group);
  app.add_option("--exchange-dtype", o->exchange_dtype,
                 "bf16: processes exchange gradients rounded to it, half the bytes; by default as "
                 "they are")
      ->check(CLI::IsMember({"bf16"}))
      ->group(group);
  app.add_option("--bucket-bytes", o->bucket_bytes,
                 "Processes exchange gradients in buckets that are closed at this size; large ones "
                 "suit many processes")
      ->check(CLI::PositiveNumber)
      ->capture_default_str()
      ->group(group);
  app.add_option("--logical-shards", o->logical_shards,
                 "Divide each batch into so many parts, whose gradients are summed in one order: "
                 "any number of processes then trains to the same bits; 0: any order")
      ->check(CLI::NonNegativeNumber)
      ->capture_default_str()
      ->group(group);
}

void AddFileOptions(CLI::App& app, TrainOptions* o) {
  const std::string group = "Files";
  app.add_option("--checkpoint", o->checkpoint,
                 "Save the run here at each validation, at the end, and when stopped by "
                 "Ctrl-C; a crash leaves the last one whole")
      ->group(group);
  app.add_option("--save-every", o->save_every, "Also save after so many updates")
      ->check(CLI::PositiveNumber)
      ->group(group);
  app.add_flag("--resume", o->resume,
               "Go on from --checkpoint if it is there, exactly where it was")
      ->group(group);
  app.add_option(
         "--snapshot-on", o->snapshot_on,
         "Signals, as SIGTERM,SIGUSR1, at which the run saves --checkpoint in the middle of "
         "the step that runs, and ends; --resume ends that step first")
      ->delimiter(',')
      ->transform(CLI::CheckedTransformer(std::map<std::string, int>{{"SIGTERM", SIGTERM},
                                                                     {"SIGINT", SIGINT},
                                                                     {"SIGHUP", SIGHUP},
                                                                     {"SIGUSR1", SIGUSR1},
                                                                     {"SIGUSR2", SIGUSR2}}))
      ->group(group);
  app.add_option(
         "--record", o->record,
         "With --refuse-nonfinite: write the step that was refused here, from its beginning, "
         "for 'caesura replay'")
      ->group(group);
  app.add_option("--best", o->best,
                 "Save a checkpoint here whenever the validation loss is the lowest so far")
      ->group(group);
  app.add_option("--output", o->output, "Write the trained model here (.onnx)")->group(group);
  app.add_option("--log", o->log, "Write step, learning rate, losses and metric here (.csv)")
      ->group(group);
  app.add_option("--report", o->report,
                 "Write a page (.html) here at the end: loss and rate curves, and time, memory and "
                 "graph of the last step")
      ->group(group);
  app.add_option("--tensorboard", o->tensorboard,
                 "Write losses, learning rate and metric into this folder for TensorBoard")
      ->group(group);
}

// Gives `value` to `set`, which returns whether the optimizer has such a coefficient; lists those
// that it has not.
template <typename T, typename Set>
void Apply(const std::optional<T>& value, const char* option, std::string* unfit, Set set) {
  if (value && !set(*value)) *unfit += (unfit->empty() ? "" : ", ") + std::string(option);
}

// The coefficients that the user gave, in `o`; returns the options that do not belong to it.
template <typename O>
std::string SetCoefficients(const TrainOptions& options, O& o) {
  std::string unfit;
  const auto nesterov = options.nesterov ? std::optional<bool>(true) : std::nullopt;
  o.learning_rate = options.learning_rate.value_or(o.learning_rate);
  Apply(options.weight_decay, "--weight-decay", &unfit, [&](double v) {
    if constexpr (requires { o.weight_decay; }) o.weight_decay = v;
    return requires { o.weight_decay; };
  });
  Apply(options.momentum, "--momentum", &unfit, [&](double v) {
    if constexpr (requires { o.momentum; }) o.momentum = v;
    return requires { o.momentum; };
  });
  Apply(options.beta1, "--beta1", &unfit, [&](double v) {
    if constexpr (requires { o.beta1; }) o.beta1 = v;
    return requires { o.beta1; };
  });
  Apply(options.beta2, "--beta2", &unfit, [&](double v) {
    if constexpr (requires { o.beta2; }) o.beta2 = v;
    return requires { o.beta2; };
  });
  Apply(options.epsilon, "--epsilon", &unfit, [&](double v) {
    if constexpr (requires { o.epsilon; }) o.epsilon = v;
    return requires { o.epsilon; };
  });
  Apply(nesterov, "--nesterov", &unfit, [&](bool v) {
    if constexpr (requires { o.nesterov; }) o.nesterov = v;
    return requires { o.nesterov; };
  });
  return unfit;
}

Result<Optimizer> MakeOptimizer(const TrainOptions& options) {
  ASSIGN_OR_RETURN(Optimizer optimizer, caesura::MakeOptimizer(options.optimizer, {}));
  const std::string unfit =
      std::visit([&](auto& o) { return SetCoefficients(options, o); }, optimizer);
  if (!unfit.empty()) return InvalidArgument(options.optimizer + " has no " + unfit);
  return optimizer;
}

}  // namespace

void AddInputOptions(CLI::App& app, TrainOptions* o) {
  const std::string group = "Data";
  app.add_option("--data", o->data,
                 "Examples: .npz, .npy or .safetensors with arrays of one length along their first "
                 "axis; anything else is text. Several texts are joined")
      ->required()
      ->group(group);
  app.add_option("--feed", o->feeds,
                 "INPUT=ARRAY: the array for an input of the model; by default the one with its "
                 "name. Repeat it for each input")
      ->allow_extra_args(false)
      ->group(group);
  app.add_option("--context", o->context,
                 "Text: characters to an example; by default what the model's input says")
      ->group(group);
}

void AddDataOptions(CLI::App& app, TrainOptions* o) {
  AddInputOptions(app, o);
  app.add_option("--target", o->target, "The array that the loss compares with")
      ->capture_default_str()
      ->group("Data");
}

void AddLossOptions(CLI::App& app, TrainOptions* o) {
  const std::string group = "Loss";
  app.add_option("--loss", o->loss,
                 "cross_entropy (scores and class numbers), mse, l1, bce_with_logits, or output: "
                 "the model computes its loss itself")
      ->check(CLI::IsMember({"cross_entropy", "mse", "l1", "bce_with_logits", "output"}))
      ->capture_default_str()
      ->group(group);
  app.add_option("--prediction", o->prediction,
                 "The output of the model that the loss is about; by default the first")
      ->group(group);
  app.add_option("--class-axis", o->class_axis,
                 "cross_entropy: the axis of the scores that holds the classes; below 0 from the "
                 "end. By default 1, for text -1")
      ->group(group);
}

void AddMetricOption(CLI::App& app, TrainOptions* o) {
  const std::string group = "Loss";
  app.add_option("--metric", o->metric,
                 "What validation reports besides the loss: accuracy, mae, none; auto takes what "
                 "fits the loss")
      ->check(CLI::IsMember({"auto", "accuracy", "mae", "none"}))
      ->capture_default_str()
      ->group(group);
}

void AddOptimizerOption(CLI::App& app, TrainOptions* o) {
  app.add_option(
         "--optimizer", o->optimizer,
         "sgd, adam, adamw, lamb, lion, rmsprop, adagrad, ...: a name that is none lists all")
      ->check([](const std::string& name) {
        const Result<Optimizer> made = caesura::MakeOptimizer(name, {});
        return made.ok() ? std::string() : made.status().message();
      })
      ->capture_default_str()
      ->group("Optimizer");
}

void AddPlacementOptions(CLI::App& app, TrainOptions* o, const std::string& group) {
  AddProviderOptions(app, &o->provider, group);
  app.add_option(
         "--nproc", o->nproc,
         "Train as so many processes, which mpirun (Open MPI) starts: each takes its part of "
         "every batch, and with --provider cuda a GPU of its own")
      ->check(CLI::Range(1, 1024))
      ->capture_default_str();
  app.add_option("--threads", o->threads, "Threads to a kernel; 0: as many as OpenMP takes")
      ->check(CLI::NonNegativeNumber)
      ->group(group);
}

void AddStepOptions(CLI::App& app, TrainOptions* options) {
  AddLossOptions(app, options);
  AddOptimizerOptions(app, options);
  AddPrecisionOptions(app, options);
  AddPlacementOptions(app, options);
}

void AddTrainOptions(CLI::App& app, TrainOptions* options) {
  app.add_option("model", options->model,
                 "The ONNX model to train; its initializers are the parameters. Or the folder of "
                 "an exported step, "
                 "which brings its loss, optimizer and state along")
      ->required();
  AddDataOptions(app, options);
  AddValidationOptions(app, options);
  AddLossOptions(app, options);
  AddMetricOption(app, options);
  AddOptimizerOptions(app, options);
  AddRunOptions(app, options);
  AddFileOptions(app, options);
}

Result<Loss> MakeLoss(const TrainOptions& options, bool is_text) {
  Loss loss;
  loss.kind = Losses().at(options.loss);
  loss.prediction = options.prediction;
  loss.target = kTargetInput;
  loss.class_axis = options.class_axis.value_or(is_text ? -1 : 1);
  if (loss.kind == Loss::Kind::kOutput && loss.prediction.empty()) {
    return InvalidArgument("--loss output needs --prediction, the model's output that is the loss");
  }
  return loss;
}

Result<TrainingOptions> MakeTrainingOptions(const TrainOptions& options, int64_t total,
                                            bool is_text) {
  if (options.eager && options.clip > 0)
    return InvalidArgument("--eager and --clip do not go together");
  if (options.eager && options.precision == "fp16") {
    return InvalidArgument("--eager and --precision fp16 do not go together");
  }
  TrainingOptions out;
  ASSIGN_OR_RETURN(out.step.loss, MakeLoss(options, is_text));
  ASSIGN_OR_RETURN(out.step.optimizer, MakeOptimizer(options));
  ASSIGN_OR_RETURN(out.schedule, NamedSchedule(options.schedule, total, options.warmup));
  ASSIGN_OR_RETURN(out.step.precision, PrecisionByName(options.precision));
  out.step.clip_norm = options.clip;
  ASSIGN_OR_RETURN(out.step.mean_over, MeanOverByName(options.mean_over));
  if (!options.exchange_dtype.empty()) {
    ASSIGN_OR_RETURN(out.step.exchange_dtype, PrecisionByName(options.exchange_dtype));
  }
  out.ranks.bucket_bytes = options.bucket_bytes;
  out.step.accumulation_steps = options.accumulate;
  out.step.trainable = options.trainable;
  out.step.frozen = options.frozen;
  out.step.train_constants = options.train_constants;
  out.step.commit = options.eager ? CommitMode::kEagerConsume : CommitMode::kLate;
  out.seed = options.seed;
  out.threads = options.threads;
  ASSIGN_OR_RETURN(out.providers, MakeProviders(options.provider));
  out.memory_budget = options.memory_budget;
  out.ranks.shard = options.shard;
  out.ranks.logical_shards = options.logical_shards;
  out.step.refuse_nonfinite = options.refuse_nonfinite;
  return out;
}

}  // namespace caesura::command
