// SPDX-License-Identifier: Apache-2.0
// The memory of a rank, and its parts of optimizer state that is divided among the ranks.
#include <algorithm>
#include <cassert>
#include <cstring>
#include <utility>

#include "core/base/status_macros.h"
#include "core/distributed/run_collectives.h"
#include "training/files/checkpoint.h"
#include "training/session/rank_group.h"
#include "training/step/parameter_shard.h"

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

const Tensor& TensorOf(const ParameterSet& set, const std::string& name) {
  return set.tensor(set.Find(name));
}

}  // namespace

RankMemory RankGroup::Memory() const {
  const ParameterSet& set = parameters_.set();
  RankMemory memory;
  size_t exchanged = 0, largest_gradient = 0;
  for (int i = 0; i < set.size(); ++i) {
    const size_t bytes = set.tensor(i).bytes();
    if (i < parameters_.trained() + parameters_.statistics()) memory.parameters += bytes;
    else if (parameters_.IsAccumulator(i)) memory.gradients += bytes;
    else memory.optimizer_state += bytes;
    if (i >= parameters_.trained()) continue;
    largest_gradient = std::max(largest_gradient, bytes);
    // An ordered sum takes room for the parts of all ranks.
    const size_t copies = is_divided() ? 0 : setup_.is_ordered() && setup_.has_others() ? 2 : 1;
    exchanged += copies * bytes;
    if (setup_.has_others() && options_.step.exchange_dtype != DType::kUndefined)
      exchanged +=
          DTypeSize(options_.step.exchange_dtype) * static_cast<size_t>(set.tensor(i).elements());
  }
  if (setup_.has_others() && options_.step.commit == CommitMode::kEagerConsume) {
    // Two buckets are exchanged and a third one is filled while the next gradient is computed. A
    // bucket exceeds its size by its last gradient.
    const size_t bucket = static_cast<size_t>(setup_.bucket_bytes) + largest_gradient;
    exchanged = std::min(exchanged, 3 * bucket + largest_gradient);
  }
  memory.gradients += exchanged;
  size_t largest = 0, second = 0;  // one bucket is exchanged while the next one is filled
  for (const ParameterShard& shard : parameters_.shards()) {
    const size_t size = DTypeSize(shard.dtype);
    memory.gradients += size * static_cast<size_t>(shard.layout.part());
    const size_t block = size * static_cast<size_t>(shard.layout.all());
    second = std::max(second, std::min(largest, block));
    largest = std::max(largest, block);
  }
  memory.gradients += largest + second;
  return memory;
}

bool RankGroup::has_divided_sums() const {
  return is_divided() && setup_.divides_sums && progress_.micro_steps_to_update != 1;
}

Status RankGroup::CheckParts(const std::vector<int64_t>& updates,
                             const std::vector<int64_t>& state_ranks) const {
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

Status RankGroup::Save(Checkpoint checkpoint, const std::string& path) const {
  if (!options_.step.rank_parts.empty()) {
    return Unsupported("rank_parts: '" + path +
                       "' would hold this rank's part of some parameters; save each rank's "
                       "parameters().Get() in a file of its own");
  }
  if (setup_.is_ordered() && progress_.accumulated() > 0) {
    return Unsupported("logical_shards: '" + path +
                       "' is to be saved after an update; now each rank has gradients of its own");
  }
  return is_divided() ? SaveParts(std::move(checkpoint), path) : SaveCheckpoint(checkpoint, path);
}

Status RankGroup::MeetToSave() const {
  if (!options_.ranks.join) return {};  // the caller does it
  int64_t words[kComparedWords] = {kSaves};
  const Result<std::vector<int64_t>> all = communicator_->Meet(words, Deadline());
  if (!all.ok()) return all.status().WithPrefix("divided state: all ranks call Save: ");
  for (size_t at = 0; at < all->size(); at += kComparedWords) {
    if ((*all)[at] != kSaves) return Refusal("the ranks' calls differ", StepFacts("Save"));
  }
  return {};
}

Status RankGroup::SaveParts(Checkpoint checkpoint, const std::string& path) const {
  const ParameterSet& set = parameters_.set();
  const bool writes = rank() == 0;
  if (has_divided_sums() && progress_.accumulated() > 0) {
    return Unsupported("shard = 2: '" + path +
                       "' is to be saved after an update; now gradients are accumulated, of which "
                       "each rank has parts");
  }
  RETURN_IF_ERROR(MeetToSave());
  RunCollectives gather(*communicator_, options_.ranks.timeout.value_or(communicator_->timeout()));
  for (const ParameterShard& shard : parameters_.shards()) {
    for (size_t m = 0; writes && has_divided_sums() && m < shard.members.size(); ++m) {
      const Tensor& like = TensorOf(set, shard.members[m]);
      checkpoint.optimizer_state[StateName("accumulator", shard.members[m])] =
          Tensor::Zeros(like.dtype(), like.shape());
    }
    for (const std::string& state : shard.states) {
      const std::string own = StateName(state, shard.name);
      const Tensor& part = TensorOf(set, own);
      Tensor all = Tensor::Zeros(shard.dtype, Shape{shard.layout.all()});
      RETURN_IF_ERROR(gather.Run(
          Collective::AllGather(shard.dtype, part.raw(), all.raw(), shard.layout.part())));
      for (int m = 0; writes && m < shard.layout.tensors(); ++m) {
        const std::string& name = shard.members[m];
        Tensor whole = Tensor::Zeros(shard.dtype, TensorOf(set, name).shape());
        Copy(all, shard.layout.offset(m), whole, 0, whole.elements());
        checkpoint.optimizer_state[StateName(state, name)] = std::move(whole);
      }
    }
  }
  const Status saved = writes ? SaveCheckpoint(checkpoint, path) : Status();
  const int64_t own[] = {saved.ok() ? 1 : 0};
  ASSIGN_OR_RETURN(const std::vector<int64_t> all, communicator_->Gather(own, Deadline()));
  if (writes || all[0] != 0) return saved;
  return IoError("'" + path + "' is not there: rank 0 could not write it");
}

std::string RankGroup::Misfits(const Checkpoint& from, bool mid_update) const {
  const ParameterSet& set = parameters_.set();
  std::string wrong;
  for (const ParameterShard& shard : parameters_.shards()) {
    for (const std::string& state : shard.states) {
      for (const std::string& name : shard.members) {
        const std::string full = StateName(state, name);
        const Shape& shape = TensorOf(set, name).shape();
        const auto found = from.optimizer_state.find(full);
        if (found == from.optimizer_state.end()) {
          wrong += "\n  '" + full + "' is missing";
        } else if (found->second.dtype() != shard.dtype || found->second.shape() != shape) {
          wrong += "\n  '" + full + "' is " + DTypeName(found->second.dtype()) +
                   found->second.shape().ToString() + ", the session has " +
                   DTypeName(shard.dtype) + shape.ToString();
        }
      }
    }
  }
  if (mid_update && has_divided_sums())
    wrong += "\n  it has the accumulated gradients of one rank, which shard = 2 cannot divide";
  return wrong;
}

void RankGroup::Restore(const Checkpoint& from) {
  assert(Misfits(from, false).empty());
  state_rank_ = rank();
  const ParameterSet& set = parameters_.set();
  for (const ParameterShard& shard : parameters_.shards()) {
    for (const std::string& state : shard.states) {
      const std::string own = StateName(state, shard.name);
      const Tensor& part = TensorOf(set, own);
      for (const BucketLayout::Piece& piece : shard.layout.Pieces(rank())) {
        const Tensor& whole =
            from.optimizer_state.at(StateName(state, shard.members[piece.tensor]));
        Copy(whole, piece.first, part, piece.at, piece.last - piece.first);
      }
    }
  }
}

}  // namespace caesura
