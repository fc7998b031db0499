// SPDX-License-Identifier: Apache-2.0
// A training session whose optimizer state is divided among the ranks.
#include <algorithm>
#include <cassert>
#include <cstring>
#include <utility>

#include "core/base/status_macros.h"
#include "training/session/training_session.h"

namespace caesura {
namespace {

std::string StateName(const std::string& state, const std::string& of) { return state + "." + of; }

char* At(const Tensor& tensor, int64_t element) {
  return static_cast<char*>(const_cast<void*>(tensor.raw())) +
         element * static_cast<int64_t>(DTypeSize(tensor.dtype()));
}

void Copy(const Tensor& from, int64_t first, const Tensor& to, int64_t at, int64_t count) {
  std::memcpy(At(to, at), At(from, first), static_cast<size_t>(count) * DTypeSize(from.dtype()));
}

}  // namespace

Status TrainingSession::CheckShardOption() const {
  if (options_.shard == 3) {
    return Unsupported(
        "shard = 3: parameters are whole on each rank; PyTorch's fully_shard(module) divides them, "
        "too");
  }
  if (options_.shard < 0 || options_.shard > 2)
    return InvalidArgument("shard: expected 0, 1 or 2, got " + std::to_string(options_.shard));
  if (options_.shard == 0 || ranks() == 1) return {};
  if (communicator()->device().is_host()) return {};
  return Unsupported("shard: parts of the state are exchanged in host memory, but '" +
                     communicator()->name() + "' exchanges that of " +
                     communicator()->device().ToString());
}

RankMemory TrainingSession::MemoryOfRank() const {
  const ParameterSet& set = parameters_->set();
  RankMemory memory;
  const bool several = ranks() > 1;
  size_t exchanged = 0, largest_gradient = 0;
  for (int i = 0; i < set.size(); ++i) {
    const size_t bytes = set.tensor(i).bytes();
    if (i < parameters_->trained() + parameters_->statistics()) memory.parameters += bytes;
    else if (parameters_->IsAccumulator(i)) memory.gradients += bytes;
    else memory.optimizer_state += bytes;
    if (i >= parameters_->trained()) continue;
    largest_gradient = std::max(largest_gradient, bytes);
    // An ordered sum takes room for the parts of all ranks.
    const size_t copies = sharded() ? 0 : ordered() && several ? 2 : 1;
    exchanged += copies * bytes;
    if (several && options_.step.exchange_dtype != DType::kUndefined)
      exchanged +=
          DTypeSize(options_.step.exchange_dtype) * static_cast<size_t>(set.tensor(i).elements());
  }
  if (several && options_.step.commit == CommitMode::kEagerConsume) {
    // Two buckets are exchanged and a third one is filled while the next gradient is computed. A
    // bucket exceeds its size by its last gradient.
    const size_t bucket = static_cast<size_t>(options_.bucket_bytes) + largest_gradient;
    exchanged = std::min(exchanged, 3 * bucket + largest_gradient);
  }
  memory.gradients += exchanged;
  size_t largest = 0, second = 0;  // one bucket is exchanged while the next one is filled
  for (const ParameterShard& shard : parameters_->shards()) {
    const size_t size = DTypeSize(shard.dtype);
    memory.gradients += size * static_cast<size_t>(shard.layout.part());
    const size_t block = size * static_cast<size_t>(shard.layout.all());
    second = std::max(second, std::min(largest, block));
    largest = std::max(largest, block);
  }
  memory.gradients += largest + second;
  return memory;
}

Status TrainingSession::CheckParts(std::span<const int64_t> updates,
                                   std::span<const int64_t> state_ranks) const {
  for (size_t r = 0; r < updates.size(); ++r) {
    const bool has_part = state_ranks[r] == static_cast<int64_t>(r);
    if (has_part && updates[r] >= 0 && updates[r] == updates[0]) continue;
    return InvalidArgument(
        "the optimizer state is divided among the ranks, and rank " + std::to_string(r) +
        (has_part ? " has done other updates than the others" : " has the part of another rank") +
        ": Restore the last checkpoint on all of them");
  }
  return {};
}

Status TrainingSession::SaveFromAllRanks(Checkpoint checkpoint, const std::string& path) const {
  const ParameterSet& set = parameters_->set();
  Communicator& communicator = *options_.communicator;
  const bool writes = communicator.rank() == 0;
  if (shards_accumulators() && progress_.accumulated() > 0) {
    return Unsupported("shard = 2: '" + path +
                       "' is to be saved after an update; now gradients are accumulated, of which "
                       "each rank has parts");
  }
  for (const ParameterShard& shard : parameters_->shards()) {
    for (size_t m = 0; writes && shards_accumulators() && m < shard.members.size(); ++m) {
      const Tensor& like = set.tensor(set.Find(shard.members[m]));
      checkpoint.optimizer_state[StateName("accumulator", shard.members[m])] =
          Tensor::Zeros(like.dtype(), like.shape());
    }
    for (const std::string& state : shard.states) {
      const Tensor& part = set.tensor(set.Find(StateName(state, shard.name)));
      Tensor all = Tensor::Zeros(shard.dtype, Shape{shard.layout.all()});
      ASSIGN_OR_RETURN(const std::unique_ptr<Work> work,
                       communicator.Start(Collective::AllGather(shard.dtype, part.raw(), all.raw(),
                                                                shard.layout.part())));
      const Status gathered = work->Wait(Clock::now() + RankTimeout());
      if (!gathered.ok()) {
        communicator.Abort(gathered.message());  // `all` ends here
        return gathered;
      }
      for (int m = 0; writes && m < shard.layout.tensors(); ++m) {
        const std::string& name = shard.members[m];
        Tensor whole = Tensor::Zeros(shard.dtype, set.tensor(set.Find(name)).shape());
        Copy(all, shard.layout.offset(m), whole, 0, whole.elements());
        checkpoint.optimizer_state[StateName(state, name)] = std::move(whole);
      }
    }
  }
  const Status saved = writes ? SaveCheckpoint(checkpoint, path) : Status();
  const int64_t own[] = {saved.ok() ? 1 : 0};
  ASSIGN_OR_RETURN(const std::vector<int64_t> all,
                   communicator.Gather(own, Clock::now() + RankTimeout()));
  if (writes || all[0] != 0) return saved;
  return IoError("'" + path + "' is not there: rank 0 could not write it");
}

std::string TrainingSession::StateMisfits(const Checkpoint& checkpoint) const {
  const ParameterSet& set = parameters_->set();
  std::string wrong;
  for (const ParameterShard& shard : parameters_->shards()) {
    for (const std::string& state : shard.states) {
      for (const std::string& name : shard.members) {
        const std::string full = StateName(state, name);
        const Shape& shape = set.tensor(set.Find(name)).shape();
        const auto found = checkpoint.optimizer_state.find(full);
        if (found == checkpoint.optimizer_state.end()) {
          wrong += "\n  '" + full + "' is missing";
        } else if (found->second.dtype() != shard.dtype || found->second.shape() != shape) {
          wrong += "\n  '" + full + "' is " + DTypeName(found->second.dtype()) +
                   found->second.shape().ToString() + ", the session has " +
                   DTypeName(shard.dtype) + shape.ToString();
        }
      }
    }
  }
  return wrong;
}

void TrainingSession::TakeState(const Checkpoint& checkpoint) {
  const ParameterSet& set = parameters_->set();
  assert(StateMisfits(checkpoint).empty());
  if (sharded()) state_rank_ = communicator()->rank();
  for (const ParameterShard& shard : parameters_->shards()) {
    for (const std::string& state : shard.states) {
      const Tensor& part = set.tensor(set.Find(StateName(state, shard.name)));
      for (const BucketLayout::Piece& piece : shard.layout.Pieces(communicator()->rank())) {
        const Tensor& whole =
            checkpoint.optimizer_state.at(StateName(state, shard.members[piece.tensor]));
        Copy(whole, piece.first, part, piece.at, piece.last - piece.first);
      }
    }
  }
}

}  // namespace caesura
