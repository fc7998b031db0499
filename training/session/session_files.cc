// SPDX-License-Identifier: Apache-2.0
#include "training/session/session_files.h"

#include <new>
#include <utility>

#include "core/base/status_macros.h"
#include "training/session/waiting_step.h"

namespace caesura {
namespace {

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

Status SaveSession(const SessionParts& from, const std::string& path,
                   std::map<std::string, Checkpoint::Property> properties) try {
  if (from.parameters.lost())
    return InvalidArgument(
        "a lost step left parameters half updated: there is nothing worth saving");
  Checkpoint checkpoint;
  RETURN_IF_ERROR(from.parameters.Save(checkpoint, from.progress.has_sums()));
  for (auto& [name, property] : properties)
    checkpoint.properties[kCallerPrefix + name] = std::move(property);
  from.progress.Save(checkpoint);
  RETURN_IF_ERROR(from.runs.Save(checkpoint));
  return from.ranks.setup().has_others() ? from.ranks.Save(std::move(checkpoint), path)
                                         : SaveCheckpoint(checkpoint, path);
} catch (const std::bad_alloc&) {
  return OutOfMemory("memory ran out while '" + path + "' was saved");
}

Result<std::map<std::string, Checkpoint::Property>> RestoreSession(const SessionParts& into,
                                                                   const std::string& path) try {
  ASSIGN_OR_RETURN(const Checkpoint checkpoint, RestoreCheckpoint(path));
  // Everything is compared before anything is written.
  const bool has_others = into.ranks.setup().has_others();
  std::string wrong;
  ASSIGN_OR_RETURN(TrainingProgress progress, into.progress.Restored(checkpoint, &wrong));
  wrong += into.parameters.Misfits(checkpoint, progress.has_sums());
  if (has_others) wrong += into.ranks.Misfits(checkpoint, /*mid_update=*/progress.losses > 0);
  if (!wrong.empty())
    return InvalidArgument("checkpoint '" + path + "' does not fit the model:" + wrong);
  RETURN_IF_ERROR(into.runs.TakeUp(checkpoint).status());  // whether its step fits
  std::map<std::string, Checkpoint::Property> properties = CallersProperties(checkpoint);
  std::vector<std::string> mixed = into.parameters.Names();
  into.runs.GoOn({});
  into.parameters.set_lost(std::move(mixed));  // memory or a device may fail on the way
  RETURN_IF_ERROR(into.parameters.Restore(checkpoint, progress.has_sums()));
  if (has_others) into.ranks.Restore(checkpoint);
  into.progress = std::move(progress);
  // With the parameters that are there now.
  ASSIGN_OR_RETURN(WaitingStep waiting, into.runs.TakeUp(checkpoint));
  into.runs.GoOn(std::move(waiting));
  into.parameters.set_lost(std::nullopt);
  return properties;
} catch (const std::bad_alloc&) {
  return OutOfMemory("memory ran out while '" + path + "' was restored");
}

}  // namespace caesura
