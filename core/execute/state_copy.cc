// SPDX-License-Identifier: Apache-2.0
// A state at another place: a second one at the same point, or the same one in other memory.
#include <cstring>
#include <new>

#include "core/base/status_macros.h"
#include "core/execute/execution_state.h"

namespace caesura {

using Kind = PlannedBuffer::Kind;

Result<std::unique_ptr<ExecutionState>> ExecutionState::Clone() const try {
  if (phase_ != Phase::kReady && phase_ != Phase::kYielded) {
    return InvalidArgument("Clone needs a state that was started and has not ended");
  }
  auto copy = std::make_unique<ExecutionState>(plan_);
  copy->phase_ = phase_;
  copy->pc_ = pc_;
  copy->yield_index_ = yield_index_;
  copy->options_ = options_;
  copy->options_.fetch_buffers.clear();  // the caller's memory takes the results of one state
  copy->addresses_ = addresses_;
  copy->dynamic_ = dynamic_;
  copy->feeds_ = feeds_;
  copy->cached_ = cached_;
  copy->yielded_ = yielded_;
  ASSIGN_OR_RETURN(copy->arena_, plan_->providers().front()->allocator().Allocate(plan_->arena_bytes()));
  copy->BindArena();
  for (const auto& [offset, bytes] : plan_->LiveRanges(pc_)) {
    std::memcpy(static_cast<char*>(copy->arena_->data()) + offset, static_cast<char*>(arena_->data()) + offset, bytes);
  }
  RETURN_IF_ERROR(copy->BindFetches());
  for (size_t id = 0; id < plan_->buffers().size(); ++id) {
    const PlannedBuffer& buffer = plan_->buffers()[id];
    const bool written = buffer.kind == Kind::kFetch && buffer.first_step < pc_ && buffer.last_step >= pc_;
    if (written) std::memcpy(copy->addresses_[id], addresses_[id], buffer.bytes);
  }
  return copy;
} catch (const std::bad_alloc&) {
  return OutOfMemory("memory ran out while a run was copied");
}

Status ExecutionState::Relocate(uint8_t poison) {
  if (phase_ != Phase::kReady && phase_ != Phase::kYielded) {
    return InvalidArgument("Relocate needs a state that was started and has not ended");
  }
  Allocator& allocator = plan_->providers().front()->allocator();
  ASSIGN_OR_RETURN(std::shared_ptr<Buffer> fresh, allocator.Allocate(plan_->arena_bytes()));
  std::memset(fresh->data(), poison, fresh->size());
  for (const auto& [offset, bytes] : plan_->LiveRanges(pc_)) {
    std::memcpy(static_cast<char*>(fresh->data()) + offset, static_cast<char*>(arena_->data()) + offset, bytes);
  }
  std::memset(arena_->data(), poison, arena_->size());
  arena_ = std::move(fresh);
  BindArena();
  for (size_t id = 0; id < plan_->buffers().size(); ++id) {
    const PlannedBuffer& buffer = plan_->buffers()[id];
    const bool dead = buffer.last_step < pc_, unborn = buffer.first_step >= pc_;
    const bool own = buffer.kind == Kind::kFetch || buffer.kind == Kind::kDynamic || buffer.kind == Kind::kResume ||
                     buffer.kind == Kind::kCached;
    if ((dead && (own || buffer.kind == Kind::kArena)) || (unborn && own && buffer.kind != Kind::kFetch)) {
      addresses_[id] = nullptr;
    } else if (buffer.kind == Kind::kFetch && options_.fetch_buffers.empty()) {
      ASSIGN_OR_RETURN(std::shared_ptr<Buffer> moved, allocator.Allocate(buffer.bytes));
      std::memset(moved->data(), poison, buffer.bytes);
      if (!unborn) std::memcpy(moved->data(), addresses_[id], buffer.bytes);
      std::memset(addresses_[id], poison, buffer.bytes);
      addresses_[id] = moved->data();
      fetch_buffers_[buffer.index] = std::move(moved);
    }
  }
  return {};
}

}  // namespace caesura
