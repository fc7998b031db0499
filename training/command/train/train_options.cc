// SPDX-License-Identifier: Apache-2.0
#include "training/command/train/train_options.h"

#include <algorithm>
#include <csignal>
#include <map>

#include <CLI/CLI.hpp>

#include "core/base/status_macros.h"
#include "training/command/command.h"
#include "training/session/option_table.h"

namespace caesura::command {
namespace {

// The command's spelling of an option of the table.
std::string FlagOf(const std::string& option) {
  if (option == "clip_norm") return "--clip";
  if (option == "accumulation_steps") return "--accumulate";
  std::string flag = "--" + option;
  std::replace(flag.begin(), flag.end(), '_', '-');
  return flag;
}

// The sentence of an option of the table, without its period.
std::string SentenceOf(const std::string& option) {
  const std::string& sentence = FindTrainingOption(option)->sentence;
  return sentence.substr(0, sentence.size() - 1);
}

void Set(const std::string& option, const OptionValue& value, TrainOptions* o) {
  const Status set = SetOption(option, value, &o->training);
  if (!set.ok()) throw CLI::ValidationError(FlagOf(option), set.message());
}

// Adds an option of the table. `more` follows its sentence in the help text.
CLI::Option* AddTableOption(CLI::App& app, const std::string& name, TrainOptions* o,
                            const std::string& more = "") {
  const TrainingOption& row = *FindTrainingOption(name);
  const std::string flag = FlagOf(name), help = SentenceOf(name) + more;
  return std::visit(
      [&](const auto& initial) -> CLI::Option* {
        using T = std::decay_t<decltype(initial)>;
        const auto set = [name, o](const auto& given) { Set(name, static_cast<T>(given), o); };
        if constexpr (std::is_same_v<T, bool>) {
          return app.add_flag_function(
              flag, [name, o](int64_t count) { Set(name, count > 0, o); }, help);
        } else if constexpr (std::is_same_v<T, int64_t>) {
          CLI::Option* option = row.any_bits ? app.add_option_function<uint64_t>(flag, set, help)
                                             : app.add_option_function<int64_t>(flag, set, help);
          return option->default_str(std::to_string(initial));
        } else if constexpr (std::is_same_v<T, double>) {
          return app.add_option_function<double>(flag, set, help)
              ->default_str(CLI::detail::to_string(initial));
        } else if constexpr (std::is_same_v<T, std::string>) {
          std::vector<std::string> names = row.choices;
          std::erase(names, "");
          CLI::Option* option = app.add_option_function<std::string>(flag, set, help);
          if (!names.empty()) option->check(CLI::IsMember(names));
          return option->default_str(initial);
        } else {
          return app.add_option_function<T>(flag, set, help)->allow_extra_args(false);
        }
      },
      row.initial());
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
  AddTableOption(app, "clip_norm", o)->check(CLI::NonNegativeNumber)->group(group);
  AddTableOption(app, "accumulation_steps", o)->check(CLI::PositiveNumber)->group(group);
  AddTableOption(app, "trainable", o)->group(group);
  AddTableOption(app, "frozen", o)->group(group);
  AddTableOption(app, "train_constants", o)->group(group);
  AddTableOption(app, "commit", o)->group(group);
  app.add_flag_callback(
         "--eager", [o] { Set("commit", std::string("eager-consume"), o); },
         "The same as --commit eager-consume")
      ->group(group);
}

void AddPrecisionOptions(CLI::App& app, TrainOptions* o) {
  const std::string group = "Run";
  AddTableOption(app, "precision", o, "; fp16 scales the loss")->group(group);
  AddTableOption(app, "refuse_nonfinite", o, "; that ends the run")->group(group);
  AddTableOption(app, "memory_budget", o, " ('caesura inspect' tells what it takes)")->group(group);
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
  AddTableOption(app, "seed", o, ", the order of examples and the held-out part")->group(group);
  AddPlacementOptions(app, o, group);
  AddTableOption(app, "shard", o)->check(CLI::Range(0, 3))->group(group);
  AddTableOption(app, "mean_over", o)->group(group);
  AddTableOption(app, "exchange_dtype", o)->group(group);
  AddTableOption(app, "bucket_bytes", o)->check(CLI::PositiveNumber)->group(group);
  AddTableOption(app, "logical_shards", o)->check(CLI::NonNegativeNumber)->group(group);
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
  CLI::Option* loss = AddTableOption(app, "loss", o)->group(group);
  if (!o->has_loss) loss->default_str("")->each([o](const std::string&) { o->has_loss = true; });
  AddTableOption(app, "prediction", o)->group(group);
  AddTableOption(app, "also", o, " (repeatable)")->group(group);
  app.add_option("--class-axis", o->class_axis,
                 SentenceOf("class_axis") + "; by default 1, for text -1")
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
  AddTableOption(app, "threads", o)->check(CLI::NonNegativeNumber)->group(group);
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
  Loss loss = options.training.step.loss;
  loss.target = kTargetInput;
  loss.class_axis = options.class_axis.value_or(is_text ? -1 : 1);
  if (loss.kind == Loss::Kind::kOutput && loss.prediction.empty()) {
    return InvalidArgument("--loss output needs --prediction, the model's output that is the loss");
  }
  return loss;
}

Result<TrainingOptions> MakeTrainingOptions(const TrainOptions& options, int64_t total,
                                            bool is_text) {
  TrainingOptions out = options.training;
  ASSIGN_OR_RETURN(out.step.loss, MakeLoss(options, is_text));
  ASSIGN_OR_RETURN(out.step.optimizer, MakeOptimizer(options));
  ASSIGN_OR_RETURN(out.schedule, NamedSchedule(options.schedule, total, options.warmup));
  ASSIGN_OR_RETURN(out.providers, MakeProviders(options.provider));
  RETURN_IF_ERROR(CheckConflicts(out, /*among_ranks=*/false, FlagOf));
  return out;
}

}  // namespace caesura::command
