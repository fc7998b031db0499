// SPDX-License-Identifier: Apache-2.0
// A training session among other ranks: how it joins them, and how it leaves.
#include <algorithm>
#include <bit>
#include <iterator>
#include <utility>
#include <vector>

#include "core/base/status_macros.h"
#include "core/distributed/run_collectives.h"
#include "core/graph/fingerprint.h"
#include "core/plan/device_constants.h"
#include "core/providers/cpu_provider.h"
#include "core/providers/tensor_copy.h"

#include "training/session/training_session.h"

namespace caesura {

uint64_t TrainingSession::RankFingerprint() const {
  Hash hash;
  for (const auto& node : parameters_->model().graph->nodes()) MixNode(hash, *node);
  for (const auto& node : update_->graph().nodes()) {
    if (node->phase() != Phase::kOptimizer) continue;
    MixNode(hash, *node);
    hash.Mix(node->inputs().size());
  }
  for (const std::string& name : options_.step.rank_parts) hash.Mix(name);
  const ParameterSet& set = parameters_->set();
  for (int i = 0; i < set.size(); ++i) {
    const Tensor& tensor = set.tensor(i);
    hash.Mix(set.name(i) + DTypeName(tensor.dtype()) + tensor.shape().ToString());
  }
  return hash.value();
}

Status TrainingSession::DivideLogicalShards() {
  const int shards = options_.logical_shards;
  options_.step.logical_shards = shards;
  if (shards == 0) return {};
  const std::string given = "logical_shards = " + std::to_string(shards) + ": ";
  if (shards < 0) return InvalidArgument(given + "expected 0 (any order of sums) or more");
  if (options_.step.accumulation_steps != 1) {
    return InvalidArgument(given +
                           "the micro-steps of an update follow from it; expected "
                           "accumulation_steps 1, got " +
                           std::to_string(options_.step.accumulation_steps));
  }
  const int own = shards / ranks();
  if (shards % ranks() != 0 || (ranks() > 1 && !std::has_single_bit(static_cast<unsigned>(own)))) {
    return InvalidArgument(given + "expected " + std::to_string(ranks()) +
                           " ranks times a power of two: each rank sums its own shards in pairs");
  }
  options_.step.accumulation_steps = own;
  if (ranks() == 1) return {};
  if (options_.shard > 0) {
    return Unsupported(given + "sums over ranks that keep parts of the state (shard = " +
                       std::to_string(options_.shard) + ") have no fixed order; expected shard 0");
  }
  if (communicator()->device().is_host()) return {};
  return Unsupported(given + "ordered sums are made in host memory, but '" +
                     communicator()->name() + "' exchanges that of " +
                     communicator()->device().ToString());
}

Status TrainingSession::PlaceCollectives() {
  RETURN_IF_ERROR(CheckShardOption());
  if (options_.bucket_bytes < 1) {
    return InvalidArgument("bucket_bytes: expected 1 or more, got " +
                           std::to_string(options_.bucket_bytes));
  }
  options_.step.bucket_bytes = 0;  // the steps of one rank have no collectives
  options_.step.collective_provider.clear();
  options_.step.shard_ranks = 0;
  if (ranks() == 1) return {};
  if (options_.shard > 0) options_.step.shard_ranks = ranks();
  options_.step.shard_accumulators = options_.shard == 2;
  if (state_rank_ < 0) state_rank_ = communicator()->rank();
  options_.step.bucket_bytes = options_.bucket_bytes;
  const Device device = communicator()->device();
  options_.step.collective_provider = kCpuProviderName;
  if (device.is_host()) return {};
  const std::shared_ptr<const ExecutionProvider> provider = ProviderOn(device);
  if (provider == nullptr) {
    return InvalidArgument("the communicator '" + communicator()->name() +
                           "' exchanges the memory of " + device.ToString() +
                           ", where no provider of the session runs nodes");
  }
  options_.step.collective_provider = provider->name();
  return {};
}

std::shared_ptr<const ExecutionProvider> TrainingSession::ProviderOn(Device device) const {
  const ProviderList providers = fallback_->providers();
  const auto found = std::find_if(providers.begin(), providers.end(),
                                  [&](const auto& p) { return p->device() == device; });
  return found == providers.end() ? nullptr : *found;
}

Status TrainingSession::JoinRanks() {
  Communicator& communicator = *options_.communicator;
  const int64_t own[] = {static_cast<int64_t>(RankFingerprint()),
                         parameters_->lost() ? -1 : progress_.updates, progress_.micro_steps,
                         state_rank_};
  constexpr size_t kWords = std::size(own);
  ASSIGN_OR_RETURN(const std::vector<int64_t> all,
                   communicator.Gather(own, Clock::now() + RankTimeout()));
  std::string others;
  size_t root = 0;
  std::vector<int64_t> updates, state_ranks;
  for (size_t r = 0; r < all.size() / kWords; ++r) {
    updates.push_back(all[r * kWords + 1]);
    state_ranks.push_back(all[r * kWords + 3]);
    if (all[r * kWords] != all[0]) others += (others.empty() ? "" : ", ") + std::to_string(r);
    if (all[r * kWords + 1] > all[root * kWords + 1]) root = r;
  }
  if (!others.empty()) {
    return InvalidArgument(
        "ranks train the same model with the same options, but the step of rank " + others +
        " is another one than that of rank 0 (rank " + std::to_string(communicator.rank()) +
        " says so)");
  }
  if (sharded()) RETURN_IF_ERROR(CheckParts(updates, state_ranks));
  if (all[root * kWords + 1] < 0)
    return InvalidArgument("no rank has whole parameters: Restore a checkpoint first");
  RETURN_IF_ERROR(TakeParameters(static_cast<int>(root)));
  state_rank_ = communicator.rank();
  progress_.updates = all[root * kWords + 1];
  progress_.micro_steps = all[root * kWords + 2];
  return {};
}

Result<Tensor> TrainingSession::OnExchangedDevice(const Tensor& tensor) const {
  const Device device = communicator()->device();
  if (tensor.device() == device) return tensor;
  ASSIGN_OR_RETURN(Tensor here, ToHost(tensor, fallback_->providers()));
  if (device.is_host()) return here;
  const std::shared_ptr<const ExecutionProvider> provider = ProviderOn(device);
  if (provider == nullptr) return Internal("no provider on the communicator's device");
  ASSIGN_OR_RETURN(Tensor there, CopyToDevice(here, *provider));
  RETURN_IF_ERROR(provider->Synchronise());
  return there;
}

bool TrainingSession::IsRankPart(int parameter) const {
  std::string name = parameters_->set().name(parameter);
  if (parameter >= parameters_->trained() +
                       parameters_->statistics()) {  // "accumulator.NAME", "optimizer.STATE.NAME"
    const int prefixes = parameters_->IsAccumulator(parameter) ? 1 : 2;
    for (int i = 0; i < prefixes; ++i) name = name.substr(name.find('.') + 1);
  }
  const std::vector<std::string>& parts = options_.step.rank_parts;
  return std::find(parts.begin(), parts.end(), name) != parts.end();
}

Status TrainingSession::TakeParameters(int root) {
  Communicator& communicator = *options_.communicator;
  std::vector<Tensor> exchanged;
  std::vector<int> taken;
  Status status;
  for (int i = 0; i < parameters_->whole() && status.ok(); ++i) {
    if (IsRankPart(i)) continue;
    Result<Tensor> tensor = OnExchangedDevice(parameters_->set().tensor(i));
    status = tensor.status();
    if (!status.ok()) break;
    exchanged.push_back(*std::move(tensor));
    taken.push_back(i);
  }
  std::vector<std::unique_ptr<Work>> works;
  for (size_t i = 0; i < exchanged.size() && status.ok(); ++i) {
    const Tensor& tensor = exchanged[i];
    auto work = communicator.Start(
        Collective::Broadcast(tensor.dtype(), tensor.raw(), tensor.elements(), root));
    status = work.status();
    if (status.ok()) works.push_back(*std::move(work));
  }
  for (const auto& work : works) {
    if (status.ok()) status = work->Wait(Clock::now() + RankTimeout());
  }
  for (size_t i = 0; i < exchanged.size() && status.ok(); ++i) {
    const Tensor& own = parameters_->set().tensor(taken[i]);
    if (own.device() != exchanged[i].device())
      status = CopyElements(exchanged[i], own, fallback_->providers());
  }
  parameters_->ForRun().TouchAll();
  if (status.ok()) return {};
  parameters_->set_lost(std::vector<std::string>());  // some are those of another rank
  communicator.Abort(status.message());
  return status;
}

Status TrainingSession::Regroup(std::shared_ptr<Communicator> communicator) {
  if (suspended()) return InvalidArgument("a step waits; ResumeStep or DropStep first");
  const bool was_alone = ranks() == 1;
  const int others = communicator == nullptr ? 1 : communicator->size();
  if (!options_.step.rank_parts.empty()) {
    return Unsupported(
        "rank_parts: each rank has its own part of parameters, and the part of a lost rank is "
        "gone: make a session again, and set the last parameters");
  }
  if (options_.shard > 0 && others != ranks()) {
    return InvalidArgument(
        "the optimizer state is divided among " + std::to_string(ranks()) +
        " ranks, and the part of a rank that was lost is gone: make a session for these " +
        std::to_string(others) +
        " and Restore the last checkpoint, which any number of ranks reads");
  }
  if (ordered() && others != ranks()) {
    return InvalidArgument("the " + std::to_string(options_.logical_shards) +
                           " logical shards are divided among " + std::to_string(ranks()) +
                           " ranks: Save, make a session for " + std::to_string(others) +
                           " and Restore there");
  }
  options_.communicator = std::move(communicator);
  if (was_alone != (ranks() == 1)) RETURN_IF_ERROR(MakePrograms());
  ranks_suspend_ = false;
  if (ranks() > 1) RETURN_IF_ERROR(JoinRanks());
  if (ranks() == 1 && parameters_->lost())
    return InvalidArgument("no rank has whole parameters: Restore a checkpoint first");
  parameters_->set_lost(std::nullopt);
  progress_.loss_sum = 0;
  progress_.losses = progress_.since_update = 0;
  if (options_.step.accumulation_steps > 1) progress_.micro_steps -= progress_.accumulated();
  return {};
}

void TrainingSession::LeaveRanks(const RunResult& result) {
  const std::shared_ptr<RunCollectives> collectives = std::exchange(collectives_, nullptr);
  if (collectives->flag_raised()) ranks_suspend_ = true;
  // The losses of this update's other micro-steps: their mean over the ranks, too.
  if (collectives->agreed()) progress_.loss_sum = collectives->shared_sum() / ranks();
  if (result.status.ok()) return;
  // After Agree all ranks have the same gradients, and refuse them for the same reason.
  const bool refused = result.status.code() == StatusCode::kInvalidArgument;
  if (collectives->agreed() && refused) return;
  // The others have done the step. With sharded state they may not have: CheckParts decides.
  if (collectives->agreed() && !sharded() && !parameters_->lost())
    parameters_->set_lost(std::vector<std::string>());
  options_.communicator->Abort(result.status.message());
}

Status TrainingSession::BeginAmongRanks(RunOptions* run) {
  if (ranks_suspend_) return Suspended("no step has begun: a rank was asked to suspend");
  if (std::exchange(suspend_at_, INT_MAX) != INT_MAX)
    return InvalidArgument("SuspendAt: with several ranks a step is suspended before it begins");
  if (!ordered()) {  // each rank draws random numbers of its own
    run->seed = run->seed.value_or(0) +
                static_cast<uint64_t>(communicator()->rank()) * 0x9e3779b97f4a7c15ull;
  }
  collectives_ = std::make_shared<RunCollectives>(*options_.communicator, RankTimeout(), suspend_);
  collectives_->Share(progress_.loss_sum);
  if (deadline_ && Clock::now() >= *deadline_) collectives_->RaiseFlag();
  run->collectives = collectives_;
  return {};
}

}  // namespace caesura
