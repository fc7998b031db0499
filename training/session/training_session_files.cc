// SPDX-License-Identifier: Apache-2.0
// The files that a training session writes and reads: checkpoints and trained models.
#include <new>
#include <utility>

#include "core/base/status_macros.h"
#include "core/onnx/model_writer.h"
#include "training/session/training_session.h"

namespace caesura {
namespace {

constexpr char kWaitingUpdates[] = "session.waiting_updates";  // whether the step that waits does
constexpr char kCallerPrefix[] = "caller.";  // of properties that are the caller's own

std::map<std::string, Checkpoint::Property> CallersProperties(const Checkpoint& checkpoint) {
  std::map<std::string, Checkpoint::Property> out;
  const std::string prefix = kCallerPrefix;
  for (const auto& [name, property] : checkpoint.properties) {
    if (name.rfind(prefix, 0) == 0) out[name.substr(prefix.size())] = property;
  }
  return out;
}

}  // namespace

Status TrainingSession::Save(const std::string& path,
                             std::map<std::string, Checkpoint::Property> properties) const try {
  if (parameters_->lost())
    return InvalidArgument(
        "a lost step left parameters half updated: there is nothing worth saving");
  Checkpoint checkpoint;
  RETURN_IF_ERROR(parameters_->Save(checkpoint, progress_.has_sums()));
  for (auto& [name, property] : properties)
    checkpoint.properties[kCallerPrefix + name] = std::move(property);
  progress_.Save(checkpoint);
  if (suspended()) {
    checkpoint.properties[kWaitingUpdates] = int64_t{waiting_.updates};
    ASSIGN_OR_RETURN(checkpoint.step, waiting_.run->Capture());
  }
  return ranks_->plan().has_others() ? ranks_->Save(std::move(checkpoint), path)
                                     : SaveCheckpoint(checkpoint, path);
} catch (const std::bad_alloc&) {
  return OutOfMemory("memory ran out while '" + path + "' was saved");
}

// The step on this session's programs, waiting.
Result<std::unique_ptr<SuspendedRun>> TrainingSession::TakeUp(const StateSnapshot& step,
                                                              bool updates) {
  RETURN_IF_ERROR(Refresh());
  return (updates ? *update_ : *accumulate_).Restore(step, MakeRun(0), UndoOfSteps());
}

Result<std::map<std::string, Checkpoint::Property>> TrainingSession::Restore(
    const std::string& path) try {
  ASSIGN_OR_RETURN(const Checkpoint checkpoint, RestoreCheckpoint(path));
  // Everything is compared before anything is written.
  std::string wrong;
  ASSIGN_OR_RETURN(TrainingProgress progress, progress_.Restored(checkpoint, &wrong));
  wrong += parameters_->Misfits(checkpoint, progress.has_sums());
  const bool has_others = ranks_->plan().has_others();
  if (has_others) wrong += ranks_->Misfits(checkpoint, /*mid_update=*/progress.losses > 0);
  if (!wrong.empty())
    return InvalidArgument("checkpoint '" + path + "' does not fit the model:" + wrong);
  WaitingStep waiting;
  if (checkpoint.step) {
    ASSIGN_OR_RETURN(const int64_t is_update, checkpoint.Get<int64_t>(kWaitingUpdates));
    waiting.updates = is_update != 0;
    RETURN_IF_ERROR(TakeUp(*checkpoint.step, waiting.updates).status());  // whether it fits
  }
  std::map<std::string, Checkpoint::Property> properties = CallersProperties(checkpoint);
  std::vector<std::string> mixed = parameters_->Names();
  waiting_ = {};
  parameters_->set_step_waits(false);
  parameters_->set_lost(std::move(mixed));  // memory or a device may fail on the way
  RETURN_IF_ERROR(parameters_->Restore(checkpoint, progress.has_sums()));
  if (has_others) ranks_->Restore(checkpoint);
  progress_ = std::move(progress);
  curves_.Clear();        // they are of another run
  if (checkpoint.step) {  // with the parameters that are there now
    ASSIGN_OR_RETURN(waiting.run, TakeUp(*checkpoint.step, waiting.updates));
    waiting.differences = DescribeDifferences(*checkpoint.step, waiting.run->started.state->plan());
  }
  waiting_ = std::move(waiting);
  parameters_->set_step_waits(suspended());
  parameters_->set_lost(std::nullopt);
  return properties;
} catch (const std::bad_alloc&) {
  return OutOfMemory("memory ran out while '" + path + "' was restored");
}

Status TrainingSession::ExportModel(const std::string& path,
                                    const std::vector<std::string>& outputs) const {
  ASSIGN_OR_RETURN(const Model model, parameters_->TrainedModel(outputs));
  return WriteModel(model, path);
}

}  // namespace caesura
