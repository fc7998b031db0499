// SPDX-License-Identifier: Apache-2.0
// TrainingProgress: how far a training run has come, apart from its tensors.
#ifndef CAESURA_TRAINING_SESSION_TRAINING_PROGRESS_H_
#define CAESURA_TRAINING_SESSION_TRAINING_PROGRESS_H_

#include <cstdint>
#include <optional>
#include <string>

#include "training/optimizer/optimizer.h"

namespace caesura {

struct Checkpoint;  // training/files/checkpoint.h

// The counters, rates and sums of losses of a run. A checkpoint keeps them; its reader may set
// them. Thread safety: as an int.
struct TrainingProgress {
  // --- what the run goes by; a checkpoint does not keep them ---
  LrSchedule schedule = {};
  int micro_steps_to_update = 1;  // of this rank; 0: the caller decides
  int logical_shards = 0;         // micro-steps to an update on all ranks; 0: sums have any order
  bool scales_loss = false;
  // The loss of a step that updates is the mean of all micro-steps, not its own.
  bool loss_is_mean = false;

  int64_t updates = 0;  // done; bias correction and the schedule go by them
  // Done since the run began: random numbers differ by them, and they tell when the next update is
  // due.
  int64_t micro_steps = 0;
  int64_t since_update = 0;  // micro-steps; where the caller decides when to update
  double base_rate = 0;      // times the schedule: the learning rate
  uint64_t seed = 0;         // of random ops
  // The next step's random ops draw by this seed, however many steps came before; later ones by
  // `seed`. A step that fails, or is given up, leaves it to the next one.
  std::optional<uint64_t> next_seed = std::nullopt;
  GradScaler scaler = GradScaler();
  double loss_sum = 0;  // of the micro-steps since the last update
  int64_t losses = 0;
  double update_loss = 0;  // the mean loss of the micro-steps of the last update, done or skipped

  // Micro-steps since the last update.
  int64_t accumulated() const {
    return micro_steps_to_update == 0 ? since_update : micro_steps % micro_steps_to_update;
  }
  // The next micro-step updates, if the caller does not decide.
  bool update_is_due() const {
    return micro_steps_to_update == 0 || accumulated() + 1 == micro_steps_to_update;
  }
  // There are sums of gradients that later micro-steps read, or may be.
  bool has_sums() const { return logical_shards == 0 || accumulated() > 0; }
  // The step of the key of random numbers (RandomKey) that this rank uses next. With logical shards
  // a shard has the same one on any number of ranks.
  int64_t random_step(int rank) const {
    return logical_shards == 0 ? micro_steps : OfAllRanks() + rank * micro_steps_to_update;
  }
  // The rate of the next update.
  double learning_rate() const { return base_rate * schedule.Factor(updates); }
  // 1 where the loss is not scaled.
  double loss_scale() const { return scales_loss ? scaler.scale() : 1; }

  // Counts a micro-step that has ended. `skipped`: its update did not happen, as gradients were not
  // finite; then this fails with kInvalidArgument where no scale of the loss is small enough.
  Status EndMicroStep(bool is_update, double loss, bool skipped);

  // Begins the accumulation of an update anew.
  void DropSums();
  // Adds the run's properties, "session.updates" and so on.
  void Save(Checkpoint& to) const;
  // This progress, as the checkpoint says. Fails with kNotFound or kInvalidModel, naming the
  // property, where it lacks one. Adds to `misfits` a line for each that this run cannot go on by.
  Result<TrainingProgress> Restored(const Checkpoint& from, std::string* misfits) const;

 private:
  // The micro-steps that rank 0 would have done, if it had done those of all ranks.
  int64_t OfAllRanks() const;
};

}  // namespace caesura

#endif  // CAESURA_TRAINING_SESSION_TRAINING_PROGRESS_H_
