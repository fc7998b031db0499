// SPDX-License-Identifier: Apache-2.0
// A training session among other ranks: how it joins them, and how it leaves.
#include <algorithm>
#include <iterator>
#include <vector>

#include "core/base/status_macros.h"
#include "core/distributed/run_collectives.h"
#include "core/graph/fingerprint.h"
#include "core/providers/tensor_copy.h"
#include "training/kernels/training_ops.h"
#include "training/training_session.h"

namespace caesura {

uint64_t TrainingSession::RankFingerprint() const {
  Hash hash;
  for (const auto& node : original_.graph->nodes()) MixNode(hash, *node);
  for (const auto& node : update_->graph().nodes()) {
    if (node->phase() != Phase::kOptimizer) continue;
    MixNode(hash, *node);
    if (node->Is("CollectiveStart", kTrainingDomain)) hash.Mix(node->inputs().size());
  }
  for (int i = 0; i < parameters_.size(); ++i) {
    const Tensor& tensor = parameters_.tensor(i);
    hash.Mix(parameters_.name(i) + DTypeName(tensor.dtype()) + tensor.shape().ToString());
  }
  return hash.value();
}

Status TrainingSession::JoinRanks() {
  Communicator& communicator = *options_.communicator;
  const int64_t own[] = {static_cast<int64_t>(RankFingerprint()),
                         parameters_inconsistent_ ? -1 : updates_, micro_steps_};
  constexpr size_t kWords = std::size(own);
  ASSIGN_OR_RETURN(const std::vector<int64_t> all,
                   communicator.Gather(own, Clock::now() + RankTimeout()));
  std::string others;
  size_t root = 0;
  for (size_t r = 0; r < all.size() / kWords; ++r) {
    if (all[r * kWords] != all[0]) others += (others.empty() ? "" : ", ") + std::to_string(r);
    if (all[r * kWords + 1] > all[root * kWords + 1]) root = r;
  }
  if (!others.empty()) {
    return InvalidArgument(
        "ranks train the same model with the same options, but the step of rank " + others +
        " is another one than that of rank 0 (rank " + std::to_string(communicator.rank()) +
        " says so)");
  }
  if (all[root * kWords + 1] < 0)
    return InvalidArgument("no rank has whole parameters: Restore a checkpoint first");
  RETURN_IF_ERROR(TakeParameters(static_cast<int>(root)));
  updates_ = all[root * kWords + 1];
  micro_steps_ = all[root * kWords + 2];
  return {};
}

Status TrainingSession::TakeParameters(int root) {
  Communicator& communicator = *options_.communicator;
  const ProviderList providers = fallback_->providers();
  std::vector<Tensor> on_host;
  Status status;
  for (int i = 0; i < parameters_.size() && status.ok(); ++i) {
    Result<Tensor> here = ToHost(parameters_.tensor(i), providers);
    status = here.status();
    if (status.ok()) on_host.push_back(*std::move(here));
  }
  std::vector<std::unique_ptr<Work>> works;
  for (size_t i = 0; i < on_host.size() && status.ok(); ++i) {
    const Tensor& tensor = on_host[i];
    auto work = communicator.Start(
        Collective::Broadcast(tensor.dtype(), tensor.raw(), tensor.elements(), root));
    status = work.status();
    if (status.ok()) works.push_back(*std::move(work));
  }
  for (const auto& work : works) {
    if (status.ok()) status = work->Wait(Clock::now() + RankTimeout());
  }
  for (size_t i = 0; i < on_host.size() && status.ok(); ++i) {
    const Tensor& own = parameters_.tensor(static_cast<int>(i));
    if (!own.device().is_host()) status = CopyElements(on_host[i], own, providers);
  }
  parameters_.TouchAll();
  if (status.ok()) return {};
  parameters_inconsistent_ = true;  // some are those of another rank
  communicator.Abort(status.message());
  return status;
}

Status TrainingSession::Regroup(std::shared_ptr<Communicator> communicator) {
  if (suspended()) return InvalidArgument("a step waits; ResumeStep or DropStep first");
  const bool was_alone = ranks() == 1;
  options_.communicator = std::move(communicator);
  // The steps of one rank have no collectives.
  options_.step.bucket_bytes = ranks() > 1 ? std::max<int64_t>(1, options_.bucket_bytes) : 0;
  if (was_alone != (ranks() == 1)) RETURN_IF_ERROR(MakePrograms());
  ranks_suspend_ = false;
  if (ranks() > 1) RETURN_IF_ERROR(JoinRanks());
  if (ranks() == 1 && parameters_inconsistent_)
    return InvalidArgument("no rank has whole parameters: Restore a checkpoint first");
  parameters_inconsistent_ = false;
  loss_sum_ = 0;
  losses_ = accumulated_ = 0;
  const int steps = options_.step.accumulation_steps;
  if (steps > 1) micro_steps_ -= micro_steps_ % steps;
  return {};
}

void TrainingSession::LeaveRanks(const RunResult& result) {
  const std::shared_ptr<RunCollectives> collectives = std::exchange(collectives_, nullptr);
  if (collectives->flag_raised()) ranks_suspend_ = true;
  // The losses of this update's other micro-steps: their mean over the ranks, too.
  if (collectives->agreed()) loss_sum_ = collectives->shared_sum() / ranks();
  if (result.status.ok()) return;
  // After Agree all ranks have the same gradients, and refuse them for the same reason.
  const bool refused = result.status.code() == StatusCode::kInvalidArgument;
  if (collectives->agreed() && refused) return;
  if (collectives->agreed()) parameters_inconsistent_ = true;  // the others have done the step
  options_.communicator->Abort(result.status.message());
}

Status TrainingSession::BeginAmongRanks(RunOptions* run) {
  if (ranks_suspend_) return Suspended("no step has begun: a rank was asked to suspend");
  if (suspend_at_ != INT_MAX)
    return InvalidArgument("SuspendAt: with several ranks a step is suspended before it begins");
  if (deadline_ && Clock::now() >= *deadline_) *suspend_ = true;
  // Each rank draws random numbers of its own.
  run->seed =
      run->seed.value_or(0) + static_cast<uint64_t>(communicator()->rank()) * 0x9e3779b97f4a7c15ull;
  collectives_ = std::make_shared<RunCollectives>(*options_.communicator, RankTimeout(), suspend_);
  collectives_->Share(loss_sum_);
  run->collectives = collectives_;
  return {};
}

}  // namespace caesura
