// SPDX-License-Identifier: Apache-2.0
// The options of `caesura train`.
#ifndef CAESURA_TRAINING_COMMAND_TRAIN_TRAIN_OPTIONS_H_
#define CAESURA_TRAINING_COMMAND_TRAIN_TRAIN_OPTIONS_H_

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "training/command/provider_choice.h"
#include "training/session/training_session.h"

namespace CLI {
class App;
}

namespace caesura::command {

struct TrainOptions {
  std::string model;
  // data
  std::vector<std::string> data;
  std::string validation;
  double validation_part = 0.1;
  std::vector<std::string> feeds;  // "input=array"
  int64_t context = 0;
  // The options that are rows of option_table.h.
  TrainingOptions training;
  // loss
  bool has_loss = true;  // false: only if --loss is given
  std::string target = "target", metric = "auto";
  std::optional<int> class_axis;
  // optimizer
  std::string optimizer = "adamw", schedule = "constant";
  std::optional<double> learning_rate, weight_decay, momentum, beta1, beta2, epsilon;
  bool nesterov = false;
  int64_t warmup = 0;
  // run
  double epochs = 10;
  int64_t steps = 0, batch = 32, validate_every = 0;
  int nproc = 1;
  ProviderChoice provider;
  // files
  std::string checkpoint, record, best, output, log, report, tensorboard;
  int64_t save_every = 0;
  bool resume = false;
  std::vector<int> snapshot_on;  // signals
};

void AddTrainOptions(CLI::App& app, TrainOptions* options);
// Options of what a step computes and where, for commands that run one again.
void AddStepOptions(CLI::App& app, TrainOptions* options);
// Parts of it, for commands that take the same: --data, --feed, --context; these and --target;
// --loss, --prediction,
// --class-axis; --metric; --optimizer; --provider, --provider-option, --threads.
void AddInputOptions(CLI::App& app, TrainOptions* options);
void AddDataOptions(CLI::App& app, TrainOptions* options);
void AddLossOptions(CLI::App& app, TrainOptions* options);
void AddMetricOption(CLI::App& app, TrainOptions* options);
void AddOptimizerOption(CLI::App& app, TrainOptions* options);
void AddPlacementOptions(CLI::App& app, TrainOptions* options,
                         const std::string& group = "Options");

// The name under which the session takes the loss's target.
inline constexpr char kTargetInput[] = "caesura.target";

// The options of the session for a run of `total` updates. `is_text`: classes are on the last
// axis. Fails with kInvalidArgument for options that do not go together.
Result<TrainingOptions> MakeTrainingOptions(const TrainOptions& options, int64_t total,
                                            bool is_text);
Result<Loss> MakeLoss(const TrainOptions& options, bool is_text);

}  // namespace caesura::command

#endif  // CAESURA_TRAINING_COMMAND_TRAIN_TRAIN_OPTIONS_H_
