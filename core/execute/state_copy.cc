// SPDX-License-Identifier: Apache-2.0
// A state at another place: a second one at the same point, or the same one in other memory.
#include <cassert>
#include <cstring>
#include <new>

#include "core/base/status_macros.h"
#include "core/execute/execution_state.h"

namespace caesura {

using Kind = PlannedBuffer::Kind;

Result<std::unique_ptr<ExecutionState>> ExecutionState::Clone() const try {
  if (stage_ != Stage::kReady && stage_ != Stage::kYielded) {
    return InvalidArgument("Clone needs a state that was started and has not ended");
  }
  auto copy = std::make_unique<ExecutionState>(plan_);
  copy->stage_ = stage_;
  copy->pc_ = pc_;
  copy->yield_index_ = yield_index_;
  copy->options_ = options_;
  copy->options_.fetch_buffers.clear();  // the caller's memory takes the results of one state
  copy->addresses_ = addresses_;
  copy->dynamic_ = dynamic_;
  copy->feeds_ = feeds_;
  copy->cached_ = cached_;
  copy->yielded_ = yielded_;
  RETURN_IF_ERROR(copy->BindArenas());
  RETURN_IF_ERROR(copy->PutRandomKeys());
  for (int d = 0; d < static_cast<int>(arenas_.size()); ++d) {
    for (const auto& [offset, bytes] : plan_->LiveRanges(pc_, d)) {
      RETURN_IF_ERROR(
          plan_->CopyBytes(d, copy->arena_bases_[d] + offset, d, arena_bases_[d] + offset, bytes));
    }
  }
  RETURN_IF_ERROR(copy->BindFetches());
  for (size_t id = 0; id < plan_->buffers().size(); ++id) {
    const PlannedBuffer& buffer = plan_->buffers()[id];
    const bool written =
        buffer.kind == Kind::kFetch && buffer.first_step < pc_ && buffer.last_step >= pc_;
    if (!written) continue;
    RETURN_IF_ERROR(plan_->CopyBytes(buffer.device, copy->addresses_[id], buffer.device,
                                     addresses_[id], buffer.bytes));
  }
  return copy;
} catch (const std::bad_alloc&) {
  return OutOfMemory("memory ran out while a run was copied");
}

Status ExecutionState::OwnFeeds() {
  assert(stage_ == Stage::kReady || stage_ == Stage::kYielded);
  std::vector<RuntimeValue> own = feeds_;
  for (RuntimeValue& feed : own) {
    if (!feed.is_tensor()) continue;  // sequences and maps are immutable
    ASSIGN_OR_RETURN(Tensor copy, CopyOf(feed.tensor()));
    feed = std::move(copy);
  }
  RETURN_IF_ERROR(WaitForDevices());
  for (size_t i = 0; i < own.size(); ++i) {
    const uint32_t id = plan_->feed_values()[i];
    if (id != 0 && own[i].is_tensor())
      addresses_[plan_->values()[id].buffer] = own[i].tensor().raw();
  }
  feeds_ = std::move(own);
  return {};
}

// Fills memory of a device with one byte.
Status ExecutionState::Poison(int device, void* data, size_t bytes, uint8_t poison) const {
  const std::vector<uint8_t> filled(device == 0 ? 0 : bytes, poison);
  if (device != 0) return plan_->CopyBytes(device, data, 0, filled.data(), bytes);
  std::memset(data, poison, bytes);
  return {};
}

Status ExecutionState::Relocate(uint8_t poison) {
  if (stage_ != Stage::kReady && stage_ != Stage::kYielded) {
    return InvalidArgument("Relocate needs a state that was started and has not ended");
  }
  for (int d = 0; d < static_cast<int>(arenas_.size()); ++d) {
    ASSIGN_OR_RETURN(std::shared_ptr<Buffer> fresh, AllocatorOf(d).Allocate(plan_->arenas()[d]));
    RETURN_IF_ERROR(Poison(d, fresh->data(), fresh->size(), poison));
    for (const auto& [offset, bytes] : plan_->LiveRanges(pc_, d)) {
      RETURN_IF_ERROR(plan_->CopyBytes(d, static_cast<char*>(fresh->data()) + offset, d,
                                       arena_bases_[d] + offset, bytes));
    }
    RETURN_IF_ERROR(Poison(d, arena_bases_[d], arenas_[d]->size(), poison));
    arenas_[d] = std::move(fresh);
  }
  RETURN_IF_ERROR(BindArenas());
  for (size_t id = 0; id < plan_->buffers().size(); ++id) {
    const PlannedBuffer& buffer = plan_->buffers()[id];
    const bool dead = buffer.last_step < pc_, unborn = buffer.first_step >= pc_;
    const bool own = buffer.kind == Kind::kFetch || buffer.kind == Kind::kDynamic ||
                     buffer.kind == Kind::kResume || buffer.kind == Kind::kCached;
    if ((dead && (own || buffer.kind == Kind::kArena)) ||
        (unborn && own && buffer.kind != Kind::kFetch)) {
      addresses_[id] = nullptr;
    } else if (buffer.kind == Kind::kFetch && options_.fetch_buffers.empty()) {
      const int d = buffer.device;
      ASSIGN_OR_RETURN(std::shared_ptr<Buffer> moved, AllocatorOf(d).Allocate(buffer.bytes));
      RETURN_IF_ERROR(Poison(d, moved->data(), buffer.bytes, poison));
      if (!unborn)
        RETURN_IF_ERROR(plan_->CopyBytes(d, moved->data(), d, addresses_[id], buffer.bytes));
      RETURN_IF_ERROR(Poison(d, addresses_[id], buffer.bytes, poison));
      addresses_[id] = moved->data();
      fetch_buffers_[buffer.index] = std::move(moved);
    }
  }
  return {};
}

}  // namespace caesura
