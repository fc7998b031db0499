// SPDX-License-Identifier: Apache-2.0
#include "training/session/training_progress.h"

#include <utility>

#include "core/base/status_macros.h"
#include "training/files/checkpoint.h"

namespace caesura {
namespace {

// Gradients that are not finite at this scale are so at any.
constexpr double kSmallestLossScale = 1.0 / (1 << 24);

constexpr char kUpdates[] = "session.updates";
constexpr char kMicroSteps[] = "session.micro_steps";
constexpr char kLearningRate[] = "session.learning_rate";
constexpr char kAccumulated[] = "session.accumulated";  // where the caller decides when to update
constexpr char kSeed[] = "session.seed";
constexpr char kLossScale[] = "session.loss_scale";  // these two where the loss is scaled
constexpr char kGoodSteps[] = "session.good_steps";
constexpr char kLossSum[] = "session.loss_sum";  // these two between the micro-steps of an update
constexpr char kLosses[] = "session.losses";
constexpr char kLogicalShards[] = "session.logical_shards";  // where sums are ordered

}  // namespace

Status TrainingProgress::EndMicroStep(bool is_update, double loss, bool skipped) {
  ++micro_steps;
  since_update = is_update ? 0 : since_update + 1;
  if (is_update && scales_loss) {
    scaler.Update(!skipped);
    if (skipped && scaler.scale() < kSmallestLossScale)
      return InvalidArgument("gradients are not finite, however small the loss is scaled");
  }
  loss_sum += loss;
  ++losses;
  if (!is_update) return {};
  const double mean = std::exchange(loss_sum, 0) / static_cast<double>(std::exchange(losses, 0));
  update_loss = loss_is_mean ? loss : mean;
  updates += skipped ? 0 : 1;
  return {};
}

void TrainingProgress::DropSums() {
  if (micro_steps_to_update > 1) micro_steps -= accumulated();
  since_update = losses = 0;
  loss_sum = 0;
}

int64_t TrainingProgress::OfAllRanks() const {
  if (logical_shards == 0) return micro_steps;
  const int64_t own = micro_steps_to_update;
  return micro_steps / own * logical_shards + micro_steps % own;
}

void TrainingProgress::Save(Checkpoint& to) const {
  to.properties[kUpdates] = updates;
  to.properties[kMicroSteps] = OfAllRanks();
  if (logical_shards > 0) to.properties[kLogicalShards] = int64_t{logical_shards};
  if (micro_steps_to_update == 0) to.properties[kAccumulated] = since_update;
  to.properties[kLearningRate] = base_rate;
  to.properties[kSeed] = static_cast<int64_t>(seed);
  if (scales_loss) {
    to.properties[kLossScale] = static_cast<double>(scaler.scale());
    to.properties[kGoodSteps] = scaler.good_steps();
  }
  if (losses > 0) {
    to.properties[kLossSum] = loss_sum;
    to.properties[kLosses] = losses;
  }
}

Result<TrainingProgress> TrainingProgress::Restored(const Checkpoint& from,
                                                    std::string* misfits) const {
  TrainingProgress out = *this;
  ASSIGN_OR_RETURN(out.updates, from.Get<int64_t>(kUpdates));
  ASSIGN_OR_RETURN(out.micro_steps, from.Get<int64_t>(kMicroSteps));
  ASSIGN_OR_RETURN(out.base_rate, from.Get<double>(kLearningRate));
  ASSIGN_OR_RETURN(const int64_t saved_seed, from.Get<int64_t>(kSeed));
  out.seed = static_cast<uint64_t>(saved_seed);
  int64_t shards = 0;
  if (from.properties.count(kLogicalShards)) {
    ASSIGN_OR_RETURN(shards, from.Get<int64_t>(kLogicalShards));
  }
  if (shards != logical_shards) {
    *misfits += "\n  it is of a run with logical_shards = " + std::to_string(shards) +
                ", the session has " + std::to_string(logical_shards);
  } else if (shards > 0) {
    const int64_t left = out.micro_steps % shards;
    out.micro_steps = out.micro_steps / shards * micro_steps_to_update + left;
    if (left != 0 && micro_steps_to_update != shards)
      *misfits += "\n  it has the accumulated gradients of one rank, which several cannot divide";
  }
  out.since_update = 0;
  if (micro_steps_to_update == 0) {
    ASSIGN_OR_RETURN(out.since_update, from.Get<int64_t>(kAccumulated));
  }
  if (scales_loss) {
    ASSIGN_OR_RETURN(const double scale, from.Get<double>(kLossScale));
    ASSIGN_OR_RETURN(const int64_t good_steps, from.Get<int64_t>(kGoodSteps));
    out.scaler.Restore(static_cast<float>(scale), good_steps);
  }
  out.loss_sum = 0;
  out.losses = 0;
  if (from.properties.count(kLosses)) {
    ASSIGN_OR_RETURN(out.loss_sum, from.Get<double>(kLossSum));
    ASSIGN_OR_RETURN(out.losses, from.Get<int64_t>(kLosses));
  }
  return out;
}

}  // namespace caesura
