// SPDX-License-Identifier: Apache-2.0
#include "core/execute/execution_state.h"

#include <cstring>

#include "core/base/status_macros.h"

namespace caesura {

using Kind = PlannedBuffer::Kind;

ExecutionState::ExecutionState(std::shared_ptr<const ExecutionPlan> plan) : plan_(std::move(plan)) {
  addresses_.assign(plan_->buffers().size(), nullptr);
  dynamic_.resize(plan_->values().size());
  cached_.resize(plan_->cache_entries());
  size_t fetches = 0;
  for (size_t id = 0; id < plan_->buffers().size(); ++id) {
    const PlannedBuffer& buffer = plan_->buffers()[id];
    if (buffer.kind == Kind::kConstant) addresses_[id] = plan_->constants()[buffer.index].raw();
    if (buffer.kind == Kind::kFetch) ++fetches;
  }
  fetch_buffers_.resize(fetches);
}

void ExecutionState::BindArena() {
  for (size_t id = 0; id < plan_->buffers().size(); ++id) {
    const PlannedBuffer& buffer = plan_->buffers()[id];
    if (buffer.kind == Kind::kArena) addresses_[id] = static_cast<char*>(arena_->data()) + buffer.offset;
  }
}

Status ExecutionState::BindFeeds(std::vector<RuntimeValue> feeds) {
  const std::vector<FeedSpec>& specs = plan_->feeds();
  if (feeds.size() != specs.size()) {
    return InvalidArgument("the plan takes " + std::to_string(specs.size()) + " feeds, got " +
                           std::to_string(feeds.size()));
  }
  for (size_t i = 0; i < feeds.size(); ++i) {
    const uint32_t id = plan_->feed_values()[i];
    if (id == 0) continue;
    if (!specs[i].Matches(feeds[i])) {
      return InvalidArgument("feed '" + plan_->values()[id].value->name() + "' is not of the dtype, shape or value " +
                             "that the plan was made for: expected " + DTypeName(specs[i].dtype) +
                             specs[i].shape.ToString() + ", got " +
                             (feeds[i].is_tensor() ? DTypeName(feeds[i].tensor().dtype()) +
                                                         feeds[i].tensor().shape().ToString()
                                                   : "no tensor"));
    }
    if (feeds[i].is_tensor()) addresses_[plan_->values()[id].buffer] = feeds[i].tensor().raw();
    else dynamic_[id] = feeds[i];
  }
  feeds_ = std::move(feeds);
  return {};
}

Status ExecutionState::BindFetches() {
  auto bind = [this](const Yield::Item& item, size_t fetch) -> Status {
    const PlannedValue& value = plan_->values()[item.value];
    const PlannedBuffer& buffer = plan_->buffers()[value.buffer];
    if (buffer.kind != Kind::kFetch || !item.move) return {};
    if (fetch < options_.fetch_buffers.size() && options_.fetch_buffers[fetch].defined()) {
      const Tensor& given = options_.fetch_buffers[fetch];
      if (given.dtype() != value.dtype || given.shape() != value.shape) {
        return InvalidArgument("buffer for output '" + item.name + "' is " + DTypeName(given.dtype()) +
                               given.shape().ToString() + ", the output is " + DTypeName(value.dtype) +
                               value.shape.ToString());
      }
      fetch_buffers_[buffer.index] = given.buffer();
      addresses_[value.buffer] = given.raw();
      return {};
    }
    Allocator* allocator = fetch < options_.fetch_allocators.size() ? options_.fetch_allocators[fetch] : nullptr;
    if (allocator == nullptr) allocator = &plan_->providers().front()->allocator();
    ASSIGN_OR_RETURN(fetch_buffers_[buffer.index], allocator->Allocate(buffer.bytes));
    addresses_[value.buffer] = fetch_buffers_[buffer.index]->data();
    return {};
  };
  for (const Yield& yield : plan_->yields()) {
    for (const Yield::Item& item : yield.outputs) RETURN_IF_ERROR(bind(item, SIZE_MAX));
  }
  for (size_t i = 0; i < plan_->fetches().size(); ++i) RETURN_IF_ERROR(bind(plan_->fetches()[i], i));
  return {};
}

Status ExecutionState::Start(std::vector<RuntimeValue> feeds, RunOptions options) {
  Cancel();
  options_ = std::move(options);
  if (arena_ == nullptr) {
    ASSIGN_OR_RETURN(arena_, HostAllocator().Allocate(plan_->arena_bytes()));
    BindArena();
  }
  RETURN_IF_ERROR(BindFeeds(std::move(feeds)));
  const size_t parameter_count = plan_->options().parameters.size();
  if (parameter_count > 0) {
    if (options_.parameters == nullptr || options_.parameters->size() < static_cast<int>(parameter_count)) {
      return InvalidArgument("the plan has " + std::to_string(parameter_count) + " parameters, the run brings fewer");
    }
    for (size_t id = 0; id < plan_->buffers().size(); ++id) {
      const PlannedBuffer& buffer = plan_->buffers()[id];
      if (buffer.kind == Kind::kParameter) addresses_[id] = options_.parameters->tensor(buffer.index).raw();
    }
  }
  RETURN_IF_ERROR(BindFetches());
  pc_ = 0;
  phase_ = Phase::kReady;
  return {};
}

void ExecutionState::Cancel() {
  for (RuntimeValue& value : dynamic_) value = {};
  for (auto& buffer : fetch_buffers_) buffer.reset();
  for (auto& buffer : cached_) buffer.reset();
  feeds_.clear();
  handed_out_.clear();
  options_ = {};
  yield_index_ = -1;
  phase_ = Phase::kIdle;
}

RuntimeValue ExecutionState::ValueOf(uint32_t id) const {
  const PlannedValue& value = plan_->values()[id];
  if (id == 0) return {};
  if (plan_->buffers()[value.buffer].kind == Kind::kDynamic) return dynamic_[id];
  // A feed keeps its own buffer, so that a kernel may share it.
  const PlannedBuffer& buffer = plan_->buffers()[value.buffer];
  if (buffer.kind == Kind::kConstant) return plan_->constants()[buffer.index].Reshaped(value.shape);
  if (buffer.kind == Kind::kFeed) return feeds_[buffer.index].tensor().Reshaped(value.shape);
  return Tensor::Borrow(value.dtype, value.shape, addresses_[value.buffer]);
}

RuntimeValue ExecutionState::ArgumentValue(const uint32_t* argument) {
  return ValueOf(plan_->argument_values()[argument - plan_->arguments().data()]);
}

void ExecutionState::SetDynamic(uint32_t value_id, RuntimeValue value) {
  if (value.is_tensor()) addresses_[plan_->values()[value_id].buffer] = value.tensor().raw();
  dynamic_[value_id] = std::move(value);
}

Result<Tensor> ExecutionState::AllocateArgument(const uint32_t* argument, DType dtype, Shape shape) {
  const size_t position = argument - plan_->arguments().data();
  ASSIGN_OR_RETURN(Tensor tensor,
                   Tensor::Allocate(dtype, std::move(shape), plan_->providers().front()->allocator()));
  SetDynamic(plan_->argument_values()[position], tensor);
  return tensor;
}

void ExecutionState::SetArgumentValue(const uint32_t* argument, RuntimeValue value) {
  SetDynamic(plan_->argument_values()[argument - plan_->arguments().data()], std::move(value));
}

void ExecutionState::Release(const Step& step) {
  for (uint32_t id : step.release) dynamic_[id] = {};
}

Result<RuntimeValue> ExecutionState::HandOut(const Yield::Item& item) {
  const PlannedValue& value = plan_->values()[item.value];
  const PlannedBuffer& buffer = plan_->buffers()[value.buffer];
  if (buffer.kind == Kind::kFetch && item.move) {
    const auto& owner = fetch_buffers_[buffer.index];
    const size_t offset = static_cast<char*>(addresses_[value.buffer]) - static_cast<char*>(owner->data());
    return RuntimeValue(Tensor(value.dtype, value.shape, owner, offset));
  }
  RuntimeValue current = ValueOf(item.value);
  if (buffer.kind == Kind::kDynamic && item.move) return current;
  if (!current.is_tensor()) return current;  // sequences are immutable and may be shared
  ASSIGN_OR_RETURN(Tensor copy, current.tensor().Clone(plan_->providers().front()->allocator()));
  return RuntimeValue(std::move(copy));
}

Status ExecutionState::HandOutYield() {
  handed_out_.clear();
  for (const Yield::Item& item : plan_->yields()[yield_index_].outputs) {
    ASSIGN_OR_RETURN(RuntimeValue value, HandOut(item));
    handed_out_.push_back(std::move(value));
  }
  return {};
}

Status ExecutionState::HandOutFetches() {
  handed_out_.clear();
  for (size_t i = 0; i < plan_->fetches().size(); ++i) {
    const Yield::Item& item = plan_->fetches()[i];
    ASSIGN_OR_RETURN(RuntimeValue value, HandOut(item));
    // A caller's buffer that the plan could not write directly (a view, an input passed through) is filled now.
    const bool bound = i < options_.fetch_buffers.size() && options_.fetch_buffers[i].defined();
    if (bound && value.is_tensor() && value.tensor().raw() != options_.fetch_buffers[i].raw()) {
      const Tensor& given = options_.fetch_buffers[i];
      if (given.dtype() != value.tensor().dtype() || given.shape() != value.tensor().shape()) {
        return InvalidArgument("buffer for output '" + item.name + "' is " + DTypeName(given.dtype()) +
                               given.shape().ToString() + ", the output is " + DTypeName(value.tensor().dtype()) +
                               value.tensor().shape().ToString());
      }
      CopyElements(given.dtype(), value.tensor().raw(), given.raw(), given.elements());
      value = given;
    }
    handed_out_.push_back(std::move(value));
  }
  return {};
}

std::vector<RuntimeValue> ExecutionState::TakeYielded() {
  for (auto& buffer : fetch_buffers_) {
    if (buffer.use_count() > 1) buffer.reset();  // handed out: the caller's alone from now on
  }
  return std::exchange(handed_out_, {});
}

std::vector<RuntimeValue> ExecutionState::TakeFetches() {
  for (auto& buffer : fetch_buffers_) buffer.reset();
  return std::exchange(handed_out_, {});
}

Status ExecutionState::Resume(std::vector<RuntimeValue> values) {
  if (phase_ != Phase::kYielded) return InvalidArgument("Resume needs a state that has yielded");
  const Yield& yield = plan_->yields()[yield_index_];
  if (values.size() != yield.resume_values.size()) {
    return InvalidArgument("the yield takes " + std::to_string(yield.resume_values.size()) + " values, got " +
                           std::to_string(values.size()));
  }
  for (size_t i = 0; i < values.size(); ++i) {
    const uint32_t id = yield.resume_values[i];
    if (id == 0) continue;
    const PlannedValue& value = plan_->values()[id];
    const std::string& name = yield.outputs[yield.resume_of[i]].name;
    if (!value.known) {
      if (!values[i].has_value()) {
        return Unsupported("the gradient of '" + name + "', whose shape shows only in the run, must be given");
      }
      SetDynamic(id, std::move(values[i]));
      continue;
    }
    const bool same = values[i].is_tensor() && values[i].tensor().dtype() == value.dtype;
    if (same && values[i].tensor().shape() == value.shape) {
      SetDynamic(id, std::move(values[i]));
      continue;
    }
    if (values[i].has_value() && !(same && values[i].tensor().elements() == 1)) {
      return InvalidArgument("the value given for '" + name + "' must be " + DTypeName(value.dtype) +
                             value.shape.ToString() + ", or absent, or one element");
    }
    ASSIGN_OR_RETURN(Tensor full, Tensor::Allocate(value.dtype, value.shape));
    const size_t size = DTypeSize(value.dtype);
    std::memset(full.raw(), 0, full.bytes());
    for (int64_t e = 0; values[i].has_value() && e < full.elements(); ++e) {
      std::memcpy(static_cast<char*>(full.raw()) + e * size, values[i].tensor().raw(), size);
    }
    SetDynamic(id, RuntimeValue(std::move(full)));
  }
  handed_out_.clear();
  yield_index_ = -1;
  phase_ = Phase::kReady;
  return {};
}

Result<std::unique_ptr<ExecutionState>> ExecutionState::Clone() const {
  auto copy = std::make_unique<ExecutionState>(plan_);
  copy->phase_ = phase_;
  copy->pc_ = pc_;
  copy->yield_index_ = yield_index_;
  copy->options_ = options_;
  copy->addresses_ = addresses_;
  copy->dynamic_ = dynamic_;
  copy->feeds_ = feeds_;
  copy->cached_ = cached_;
  ASSIGN_OR_RETURN(copy->arena_, HostAllocator().Allocate(plan_->arena_bytes()));
  copy->BindArena();
  for (const auto& [offset, bytes] : plan_->LiveRanges(pc_)) {
    std::memcpy(static_cast<char*>(copy->arena_->data()) + offset, static_cast<char*>(arena_->data()) + offset, bytes);
  }
  // Fetches that are written later need memory of their own.
  RETURN_IF_ERROR(copy->BindFetches());
  for (size_t id = 0; id < plan_->buffers().size(); ++id) {
    const PlannedBuffer& buffer = plan_->buffers()[id];
    if (buffer.kind != Kind::kFetch || buffer.first_step >= pc_ || fetch_buffers_[buffer.index] == nullptr) continue;
    std::memcpy(copy->addresses_[id], addresses_[id], buffer.bytes);
  }
  return copy;
}

Status ExecutionState::Relocate(uint8_t poison) {
  ASSIGN_OR_RETURN(std::shared_ptr<Buffer> fresh, HostAllocator().Allocate(plan_->arena_bytes()));
  std::memset(fresh->data(), poison, fresh->size());
  for (const auto& [offset, bytes] : plan_->LiveRanges(pc_)) {
    std::memcpy(static_cast<char*>(fresh->data()) + offset, static_cast<char*>(arena_->data()) + offset, bytes);
  }
  std::memset(arena_->data(), poison, arena_->size());
  arena_ = std::move(fresh);
  BindArena();
  return {};
}

}  // namespace caesura
