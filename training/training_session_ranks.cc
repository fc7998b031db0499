// SPDX-License-Identifier: Apache-2.0
// A training session among other ranks: how it joins them, and how it leaves.
#include <algorithm>
#include <vector>

#include "core/base/status_macros.h"
#include "core/graph/fingerprint.h"
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
  const auto deadline = [this] { return Clock::now() + RankTimeout(); };
  const auto own = static_cast<int64_t>(RankFingerprint());
  ASSIGN_OR_RETURN(const std::vector<int64_t> all, communicator.Gather({&own, 1}, deadline()));
  std::string others;
  for (size_t r = 1; r < all.size(); ++r) {
    if (all[r] != all[0]) others += (others.empty() ? "" : ", ") + std::to_string(r);
  }
  if (!others.empty()) {
    return InvalidArgument(
        "ranks train the same model with the same options, but the step of rank " + others +
        " is another one than that of rank 0 (rank " + std::to_string(communicator.rank()) +
        " says so)");
  }
  std::vector<std::unique_ptr<Work>> works;
  for (int i = 0; i < parameters_.size(); ++i) {
    const Tensor& own_tensor = parameters_.tensor(i);
    auto work = communicator.Start(
        Collective::Broadcast(own_tensor.dtype(), own_tensor.raw(), own_tensor.elements()));
    RETURN_IF_ERROR(work.status());
    works.push_back(*std::move(work));
  }
  for (const auto& work : works) {
    const Status status = work->Wait(deadline());
    if (status.ok()) continue;
    communicator.Abort(status.message());
    return status;
  }
  parameters_.TouchAll();
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
  run->seed += static_cast<uint64_t>(communicator()->rank()) * 0x9e3779b97f4a7c15ull;
  collectives_ = std::make_shared<RunCollectives>(*options_.communicator, RankTimeout(), suspend_);
  collectives_->Share(loss_sum_);
  run->collectives = collectives_;
  return {};
}

}  // namespace caesura
