// SPDX-License-Identifier: Apache-2.0
#include "core/execute/execution_state.h"

#include <algorithm>
#include <new>
#include <utility>

#include "core/base/status_macros.h"
#include "core/execute/undo_log.h"
#include "core/plan/node_error.h"
#include "core/providers/tensor_copy.h"

namespace caesura {

using Kind = PlannedBuffer::Kind;

namespace {

// The bytes of `tensor` under a view's dtype and shape.
Tensor ViewAs(const PlannedValue& value, const Tensor& tensor) {
  const size_t offset =
      static_cast<char*>(tensor.raw()) - static_cast<char*>(tensor.buffer()->data());
  return Tensor(value.dtype, value.shape, tensor.buffer(), offset);
}

}  // namespace

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

void ExecutionState::TakeArenas(ExecutionState& waiting) {
  arenas_ = std::exchange(waiting.arenas_, {});
  arenas_.resize(plan_->devices().size());
  for (size_t d = 0; d < arenas_.size(); ++d) {
    const bool same_device =
        arenas_[d] != nullptr && arenas_[d]->device() == plan_->devices()[d].device;
    if (!same_device || arenas_[d]->size() < plan_->arenas()[d]) arenas_[d] = nullptr;
  }
}

// --- where the bytes are ---

Result<std::shared_ptr<Buffer>> ExecutionState::Allocate(int device, size_t bytes,
                                                         Allocator& allocator) const {
  auto buffer = allocator.Allocate(bytes);
  if (buffer.ok() || device == 0) return buffer;
  return AtMemory(buffer.status(), plan_->devices()[device].provider->name());
}

Status ExecutionState::BindArenas() {
  arenas_.resize(plan_->devices().size());
  for (size_t d = 0; d < arenas_.size(); ++d) {
    if (arenas_[d] == nullptr) {
      const int device = static_cast<int>(d);
      ASSIGN_OR_RETURN(arenas_[d], Allocate(device, plan_->arenas()[d], AllocatorOf(device)));
    }
    arena_bases_[d] = static_cast<char*>(arenas_[d]->data());
  }
  for (size_t id = 0; id < plan_->buffers().size(); ++id) {
    const PlannedBuffer& buffer = plan_->buffers()[id];
    if (buffer.kind == Kind::kArena) addresses_[id] = arena_bases_[buffer.device] + buffer.offset;
  }
  return {};
}

Status ExecutionState::PutRandomKeys() {
  for (const int device : plan_->random_devices()) {
    const uint64_t key[] = {options_.seed.value_or(0), options_.step.value_or(0)};
    std::shared_ptr<Buffer>& buffer = random_keys_[device];
    if (buffer == nullptr) {
      ASSIGN_OR_RETURN(buffer, Allocate(device, sizeof(key), AllocatorOf(device)));
    }
    RETURN_IF_ERROR(plan_->CopyBytes(device, buffer->data(), 0, key, sizeof(key)));
  }
  return {};
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
      return InvalidArgument("feed '" + plan_->values()[id].value->name() +
                             "' is not of the dtype, shape or value " +
                             "that the plan was made for: expected " + DTypeName(specs[i].dtype) +
                             specs[i].shape.ToString() + ", got " + feeds[i].Describe());
    }
    if (feeds[i].is_tensor()) addresses_[plan_->values()[id].buffer] = feeds[i].tensor().raw();
    else dynamic_[id] = feeds[i];
  }
  feeds_ = std::move(feeds);
  return {};
}

Status ExecutionState::BindParameters() {
  const size_t count = plan_->options().parameters.size();
  if (count == 0) return {};
  if (options_.parameters == nullptr || options_.parameters->size() < static_cast<int>(count)) {
    return InvalidArgument("the plan has " + std::to_string(count) +
                           " parameters, the run brings fewer");
  }
  for (size_t id = 0; id < plan_->buffers().size(); ++id) {
    const PlannedBuffer& buffer = plan_->buffers()[id];
    if (buffer.kind != Kind::kParameter) continue;
    const Tensor& given = options_.parameters->tensor(buffer.index);
    if (given.bytes() != buffer.bytes) {
      return InvalidArgument("parameter '" + options_.parameters->name(buffer.index) + "' has " +
                             std::to_string(given.bytes()) + " bytes, the plan was made for " +
                             std::to_string(buffer.bytes));
    }
    if (given.device() != plan_->devices()[buffer.device].device) {
      return InvalidArgument("parameter '" + options_.parameters->name(buffer.index) + "' is on " +
                             given.device().ToString() + ", the plan was made for " +
                             plan_->devices()[buffer.device].device.ToString());
    }
    addresses_[id] = given.raw();
  }
  return {};
}

const Tensor* ExecutionState::FetchBuffer(int fetch, int device) const {
  if (fetch < 0 || fetch >= static_cast<int>(options_.fetch_buffers.size())) return nullptr;
  const Tensor& given = options_.fetch_buffers[fetch];
  if (!given.defined() || given.device() != plan_->devices()[device].device) return nullptr;
  if (!options_.buffers_on_feeds) return &given;
  const auto is_given = [&given](const RuntimeValue& f) {
    return f.is_tensor() && f.tensor().raw() == given.raw();
  };
  return std::any_of(feeds_.begin(), feeds_.end(), is_given) ? nullptr : &given;
}

Allocator& ExecutionState::FetchAllocator(int fetch, int device) const {
  const bool given = fetch >= 0 && fetch < static_cast<int>(options_.fetch_allocators.size());
  Allocator* allocator = given ? options_.fetch_allocators[fetch] : nullptr;
  const bool serves =
      allocator != nullptr && allocator->device() == plan_->devices()[device].device;
  return serves ? *allocator : AllocatorOf(device);
}

// `fetch`: the graph output's index; -1 for what a yield hands out.
Status ExecutionState::BindFetch(const Yield::Item& item, int fetch) {
  const PlannedValue& value = plan_->values()[item.value];
  const PlannedBuffer& buffer = plan_->buffers()[value.buffer];
  if (buffer.kind != Kind::kFetch || !item.move || buffer.last_step < pc_) return {};
  std::shared_ptr<Buffer>& owner = fetch_buffers_[buffer.index];
  if (fetch >= 0 && fetch < static_cast<int>(options_.fetch_buffers.size()) &&
      options_.fetch_buffers[fetch].defined()) {
    const Tensor& given = options_.fetch_buffers[fetch];
    if (given.dtype() != value.dtype || given.shape() != value.shape) {
      return InvalidArgument("buffer for output '" + item.name + "' is " +
                             RuntimeValue(given).Describe() + ", the output is " +
                             DTypeName(value.dtype) + value.shape.ToString());
    }
  }
  if (const Tensor* given = FetchBuffer(fetch, buffer.device)) {
    owner = given->buffer();
    addresses_[value.buffer] = given->raw();
    return {};
  }
  ASSIGN_OR_RETURN(owner,
                   Allocate(buffer.device, buffer.bytes, FetchAllocator(fetch, buffer.device)));
  addresses_[value.buffer] = owner->data();
  return {};
}

Status ExecutionState::BindFetches() {
  for (const Yield& yield : plan_->yields()) {
    for (const Yield::Item& item : yield.outputs) RETURN_IF_ERROR(BindFetch(item, -1));
  }
  for (size_t i = 0; i < plan_->fetches().size(); ++i) {
    RETURN_IF_ERROR(BindFetch(plan_->fetches()[i], static_cast<int>(i)));
  }
  return {};
}

Status ExecutionState::VerifyContiguous() const {
  for (const ContiguousGroup& group : plan_->contiguous()) {
    if (group.step < pc_) continue;  // a restored run has what later steps read, nothing else
    for (size_t i = 0; i + 1 < group.buffers.size(); ++i) {
      const size_t bytes = plan_->buffers()[group.buffers[i]].bytes;
      const char* next = static_cast<char*>(addresses_[group.buffers[i]]) +
                         (bytes + group.alignment - 1) / group.alignment * group.alignment;
      if (next == addresses_[group.buffers[i + 1]]) continue;
      const PlanStep& step = plan_->steps()[group.step];
      return AtNode(
          InvalidArgument("wants its inputs in one block, but buffer " + std::to_string(i + 1) +
                          " of them does not begin where the one before ends" +
                          (group.alignment > 1 ? " (at the next multiple of " +
                                                     std::to_string(group.alignment) + ")"
                                               : "")),
          *step.node, step.provider->name());
    }
  }
  return {};
}

// --- begin and end ---

Status ExecutionState::Start(std::vector<RuntimeValue> feeds, RunOptions options) try {
  Cancel();
  options_ = std::move(options);
  RETURN_IF_ERROR(BindArenas());  // a relocation has forgotten what was dead
  RETURN_IF_ERROR(PutRandomKeys());
  RETURN_IF_ERROR(BindFeeds(std::move(feeds)));
  RETURN_IF_ERROR(BindParameters());
  RETURN_IF_ERROR(BindFetches());
  RETURN_IF_ERROR(VerifyContiguous());
  handed_out_.reserve(
      plan_->fetches().size());  // handing out needs no memory once the run has changed parameters
  stage_ = Stage::kReady;
  return {};
} catch (const std::bad_alloc&) {
  return OutOfMemory("memory ran out while a run was started");
}

void ExecutionState::Cancel() {
  for (RuntimeValue& value : dynamic_) {
    if (value.has_value()) value = {};  // most plans have few or none
  }
  for (auto& buffer : fetch_buffers_) buffer.reset();
  for (auto& buffer : cached_) buffer.reset();
  feeds_.clear();
  handed_out_.clear();
  yielded_.clear();
  options_ = {};
  yield_index_ = -1;
  pc_ = 0;
  stage_ = Stage::kIdle;
}

// --- values ---

RuntimeValue ExecutionState::ValueOf(uint32_t id) const {
  if (id == 0) return {};
  const PlannedValue& value = plan_->values()[id];
  const PlannedBuffer& buffer = plan_->buffers()[value.buffer];
  if (buffer.kind == Kind::kDynamic) return dynamic_[id];
  if (!value.layout.dense() && buffer.device == 0) {
    const Tensor dense = Tensor::Zeros(value.dtype, value.shape);
    CopyDense(addresses_[value.buffer], value.shape, value.layout, DTypeSize(value.dtype),
              dense.raw());
    return dense;
  }
  // Feeds and constants keep their own buffers, so that a kernel may share them.
  if (buffer.kind == Kind::kConstant) return ViewAs(value, plan_->constants()[buffer.index]);
  if (buffer.kind == Kind::kFeed && !feeds_[buffer.index].is_tensor())
    return {};  // an optional that was left out
  if (buffer.kind == Kind::kFeed) return ViewAs(value, feeds_[buffer.index].tensor());
  return Tensor::Borrow(value.dtype, value.shape, addresses_[value.buffer],
                        plan_->devices()[buffer.device].device);
}

Result<RuntimeValue> ExecutionState::HostValueOf(uint32_t id) const {
  RuntimeValue value = ValueOf(id);
  if (!value.is_tensor() || value.tensor().device().is_host()) return value;
  const PlannedValue& planned = plan_->values()[id];
  const size_t element = DTypeSize(value.tensor().dtype());
  const PlannedBuffer& buffer = plan_->buffers()[planned.buffer];
  if (planned.layout.dense()) {
    ASSIGN_OR_RETURN(Tensor dense, ToHost(value.tensor(), plan_->providers()));
    return RuntimeValue(std::move(dense));
  }
  ASSIGN_OR_RETURN(const std::shared_ptr<Buffer> all, AllocatorOf(0).Allocate(buffer.bytes));
  RETURN_IF_ERROR(
      plan_->CopyBytes(0, all->data(), buffer.device, addresses_[planned.buffer], buffer.bytes));
  RETURN_IF_ERROR(WaitForDevices());
  Tensor dense = Tensor::Zeros(planned.dtype, planned.shape);
  CopyDense(all->data(), planned.shape, planned.layout, element, dense.raw());
  return RuntimeValue(std::move(dense));
}

// --- between devices ---

int ExecutionState::DeviceIndex(const Tensor& tensor) const {
  const std::vector<DeviceMemory>& devices = plan_->devices();
  for (size_t d = 0; d < devices.size(); ++d) {
    if (devices[d].device == tensor.device()) return static_cast<int>(d);
  }
  return -1;
}

Result<Tensor> ExecutionState::CopyTo(const Tensor& tensor, int device,
                                      Allocator& allocator) const {
  const int from = DeviceIndex(tensor);
  if (from < 0)
    return InvalidArgument("a tensor is on " + tensor.device().ToString() +
                           ", which no provider serves");
  if (tensor.dtype() == DType::kString) return tensor.Clone(allocator);
  if (from != device && from != 0 && device != 0) {
    ASSIGN_OR_RETURN(const Tensor between, CopyTo(tensor, 0, AllocatorOf(0)));
    RETURN_IF_ERROR(WaitForDevices());
    return CopyTo(between, device, allocator);
  }
  ASSIGN_OR_RETURN(Tensor copy, Tensor::Allocate(tensor.dtype(), tensor.shape(), allocator));
  RETURN_IF_ERROR(plan_->CopyBytes(device, copy.raw(), from, tensor.raw(), tensor.bytes()));
  return copy;
}

Result<Tensor> ExecutionState::CopyOf(const Tensor& tensor) const {
  const int device = std::max(0, DeviceIndex(tensor));
  return CopyTo(tensor, device, AllocatorOf(device));
}

Status ExecutionState::WaitForDevices() const {
  for (const DeviceMemory& memory : plan_->devices()) {
    if (memory.device.is_host()) continue;
    RETURN_IF_ERROR(options_.undo != nullptr ? options_.undo->Wait(*memory.provider)
                                             : memory.provider->Synchronise());
  }
  return {};
}

RuntimeValue ExecutionState::ArgumentValue(const uint32_t* argument) {
  return ValueOf(plan_->argument_values()[argument - plan_->arguments().data()]);
}

void ExecutionState::SetDynamic(uint32_t value_id, RuntimeValue value) {
  if (value.is_tensor()) addresses_[plan_->values()[value_id].buffer] = value.tensor().raw();
  dynamic_[value_id] = std::move(value);
}

Result<Tensor> ExecutionState::AllocateArgument(const uint32_t* argument, DType dtype,
                                                Shape shape) {
  const uint32_t id = plan_->argument_values()[argument - plan_->arguments().data()];
  const size_t given = std::max(options_.fetch_allocators.size(), options_.fetch_buffers.size());
  int fetch = -1;
  for (size_t i = 0; i < given && i < plan_->fetches().size(); ++i) {
    if (plan_->fetches()[i].value == id && plan_->fetches()[i].move) fetch = static_cast<int>(i);
  }
  const int device = plan_->buffers()[plan_->values()[id].buffer].device;
  const Tensor* buffer = FetchBuffer(fetch, device);
  if (buffer != nullptr && buffer->dtype() == dtype && buffer->shape() == shape) {
    SetDynamic(id, *buffer);
    return *buffer;
  }
  ASSIGN_OR_RETURN(Tensor tensor,
                   Tensor::Allocate(dtype, std::move(shape), FetchAllocator(fetch, device)));
  SetDynamic(id, tensor);
  return tensor;
}

void ExecutionState::SetArgumentValue(const uint32_t* argument, RuntimeValue value) {
  SetDynamic(plan_->argument_values()[argument - plan_->arguments().data()], std::move(value));
}

void ExecutionState::Release(const PlanStep& step) {
  for (uint32_t id : step.release) dynamic_[id] = {};
}

}  // namespace caesura
