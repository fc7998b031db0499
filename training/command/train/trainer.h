// SPDX-License-Identifier: Apache-2.0
// One run of `caesura train`: what there is between the options and the exit code.
#ifndef CAESURA_TRAINING_COMMAND_TRAIN_TRAINER_H_
#define CAESURA_TRAINING_COMMAND_TRAIN_TRAINER_H_

#include <csignal>
#include <cstdio>
#include <limits>
#include <memory>
#include <optional>
#include <string>

#include "training/command/train/metric.h"
#include "training/command/train/train_data.h"
#include "training/command/train/train_options.h"
#include "training/data/dataset.h"
#include "training/files/event_file.h"
#include "training/report/report.h"

namespace caesura::command {

class Trainer {
 public:
  // Reads model and data and makes the session; goes on from the checkpoint when the options say
  // so.
  static Result<std::unique_ptr<Trainer>> Create(const TrainOptions& options);

  // Trains to the end, or until `*stop` is set (by a signal handler): then saves after the update
  // that runs, and returns kCancelled. A signal of --snapshot-on saves in the middle of a step.
  Status Run(const volatile std::sig_atomic_t* stop);

 private:
  struct FileCloser {
    void operator()(std::FILE* file) const { std::fclose(file); }
  };

  explicit Trainer(const TrainOptions& options) : options_(options) {}
  Status Prepare();
  Status CheckOptions() const;
  Status PrepareData(const Model& model);
  Status PrepareSession(Model model, std::optional<StepOptions> exported);
  // Takes this process's place among the ranks that mpirun has started, if it has.
  Status JoinRanks();
  Status Restore();
  Status CutLog() const;
  Status OpenLog();
  void PrintHead();
  void PrintRanks() const;
  // The batches of one update; the mean of their losses.
  Result<double> Update();
  Status Record(const NamedValues& feeds, const Status& refused);
  Status AfterUpdate(double loss);
  // Saves what is under way; says so as kCancelled.
  Status Pause();
  // This rank's micro-steps to an update.
  int64_t MicroSteps() const;
  // This rank's part of a batch in such a micro-step.
  std::span<const int64_t> Part(std::span<const int64_t> batch, int64_t micro_step) const;
  Result<NamedValues> Feeds(const Dataset& data, std::span<const int64_t> indices) const;
  Status Validate();
  Status Save(const std::string& path) const;
  void Log(double loss, bool validated);
  Status WriteEvents(double loss, bool validated);
  // The loop of updates, to the end or until `*stop` is set.
  Status Train(const volatile std::sig_atomic_t* stop);
  Status WriteRunReport() const;
  std::optional<double> MetricMean() const;
  // The options that the user has chosen, as the report shows them.
  std::vector<std::pair<std::string, std::string>> Options() const;
  std::string OptionsText() const;
  std::string Note() const;
  void PrintEnd(double seconds) const;

  TrainOptions options_;
  std::shared_ptr<Communicator> ranks_;  // null: there are no other ones
  bool is_first_rank_ = true;            // it prints, logs, validates and saves for all
  TrainData data_;
  std::unique_ptr<TrainingSession> session_;
  std::optional<Sampler> sampler_;
  std::optional<Metric> metric_;
  std::unique_ptr<std::FILE, FileCloser> log_;
  std::unique_ptr<EventWriter> events_;
  std::vector<TrainingCurves::Validation> validations_;  // with --report
  RunRecorder last_step_;                                // with --report
  size_t prediction_ = 0;                                // which of the model's outputs
  int64_t total_ = 0, validate_every_ = 0, first_ = 0;
  std::optional<double> unrecorded_loss_;  // of the last update, where AfterUpdate has not ended
  double smooth_loss_ = std::numeric_limits<double>::quiet_NaN();
  double validation_loss_ = std::numeric_limits<double>::quiet_NaN();
  double best_loss_ = std::numeric_limits<double>::infinity();
  int64_t best_update_ = 0;
};

}  // namespace caesura::command

#endif  // CAESURA_TRAINING_COMMAND_TRAIN_TRAINER_H_
