// SPDX-License-Identifier: Apache-2.0
// The border between a run and its caller: values handed out at a yield and at the
// end, values taken in.
#include <cstring>
#include <new>

#include "core/base/status_macros.h"
#include "core/execute/execution_state.h"
#include "core/execute/undo_log.h"

namespace caesura {

using Kind = PlannedBuffer::Kind;

// The caller owns each result: a buffer that nothing else refers to, or a copy.
// `fetch`: the graph output's index; -1 at a yield.
Result<RuntimeValue> ExecutionState::HandOut(const Yield::Item& item, int fetch) {
  const PlannedValue& value = plan_->values()[item.value];
  const PlannedBuffer& buffer = plan_->buffers()[value.buffer];
  if (buffer.kind == Kind::kFetch && item.move) {
    std::shared_ptr<Buffer> owner = std::move(fetch_buffers_[buffer.index]);
    const size_t offset =
        static_cast<char*>(addresses_[value.buffer]) - static_cast<char*>(owner->data());
    return RuntimeValue(Tensor(value.dtype, value.shape, std::move(owner), offset));
  }
  RuntimeValue current = ValueOf(item.value);
  if (!current.is_tensor()) return current;  // sequences and maps are immutable and may be shared
  const Tensor* given = FetchBuffer(fetch, item.device);
  if (given != nullptr && given->raw() == current.tensor().raw()) return current;
  // Two owners are this state and `current`; a kernel or a clone of the state may have kept the
  // buffer too.
  const std::shared_ptr<Buffer>& owner = current.tensor().buffer();
  if (buffer.kind == Kind::kDynamic && item.move && owner->owns_memory() && owner.use_count() <= 2)
    return current;
  if (options_.undo != nullptr && item.device == 0 && buffer.device != 0) {
    // The host would wait for a device whose updates wait for the host.
    if (auto memory = options_.undo->HostMemory(current.tensor().bytes())) {
      const Tensor copy(value.dtype, current.tensor().shape(), std::move(memory), 0);
      RETURN_IF_ERROR(plan_->CopyBytes(0, copy.raw(), buffer.device, current.tensor().raw(),
                                       current.tensor().bytes()));
      return RuntimeValue(copy);
    }
    RETURN_IF_ERROR(options_.undo->Release());
  }
  ASSIGN_OR_RETURN(Tensor copy,
                   CopyTo(current.tensor(), item.device, FetchAllocator(fetch, item.device)));
  return RuntimeValue(std::move(copy));
}

Status ExecutionState::HandOutYield() {
  const Yield& yield = plan_->yields()[yield_index_];
  handed_out_.clear();
  yielded_.clear();
  for (const Yield::Item& item : yield.outputs) {
    ASSIGN_OR_RETURN(RuntimeValue value, HandOut(item, -1));
    if (!plan_->values()[item.value].known) {
      yielded_.resize(yield.outputs.size());
      yielded_[handed_out_.size()] = FeedSpec::Of(value);
    }
    handed_out_.push_back(std::move(value));
  }
  return {};
}

Status ExecutionState::HandOutFetches() {
  handed_out_.clear();
  bool waits = false;
  for (size_t i = 0; i < plan_->fetches().size(); ++i) {
    const Yield::Item& item = plan_->fetches()[i];
    ASSIGN_OR_RETURN(RuntimeValue value, HandOut(item, static_cast<int>(i)));
    waits |= item.device == 0 && plan_->buffers()[plan_->values()[item.value].buffer].device != 0;
    handed_out_.push_back(std::move(value));
  }
  RETURN_IF_ERROR(CheckBuffers());
  if (options_.undo != nullptr) RETURN_IF_ERROR(options_.undo->Release());
  if (waits) RETURN_IF_ERROR(WaitForDevices());
  // Caller's buffers that the plan could not write directly (a view, an input passed through, a
  // buffer that is also a feed) are filled now, when nothing reads the feeds any more.
  for (size_t i = 0; i < handed_out_.size() && i < options_.fetch_buffers.size(); ++i) {
    const Tensor& given = options_.fetch_buffers[i];
    if (!given.defined() || handed_out_[i].tensor().raw() == given.raw()) continue;
    Status filled = Fill(given, handed_out_[i].tensor());
    // Not a provider's failure: another try would read what this one may have overwritten.
    if (!filled.ok() && options_.buffers_on_feeds) {
      return Unsupported("inputs may be half replaced by outputs: " + filled.message());
    }
    RETURN_IF_ERROR(filled);
    handed_out_[i] = given;
  }
  return {};
}

// Checks caller buffers against dtypes and shapes that are known only now.
Status ExecutionState::CheckBuffers() const {
  for (size_t i = 0; i < handed_out_.size() && i < options_.fetch_buffers.size(); ++i) {
    const Tensor& given = options_.fetch_buffers[i];
    const RuntimeValue& value = handed_out_[i];
    if (!given.defined() || (value.is_tensor() && value.tensor().dtype() == given.dtype() &&
                             value.tensor().shape() == given.shape())) {
      continue;
    }
    return InvalidArgument("buffer for output '" + plan_->fetches()[i].name + "' is " +
                           RuntimeValue(given).Describe() + ", the output is " + value.Describe());
  }
  return {};
}

// Copies to a caller's buffer, wherever that is.
Status ExecutionState::Fill(const Tensor& to, const Tensor& from) const {
  if (to.dtype() == DType::kString) {
    CopyElements(to.dtype(), from.raw(), to.raw(), to.elements());
    return {};
  }
  const int device = DeviceIndex(to);
  if (device < 0)
    return InvalidArgument("a buffer is on " + to.device().ToString() +
                           ", which no provider serves");
  RETURN_IF_ERROR(plan_->CopyBytes(device, to.raw(), DeviceIndex(from), from.raw(), from.bytes()));
  return device == 0 && !from.device().is_host() ? WaitForDevices() : Status();
}

std::vector<RuntimeValue> ExecutionState::TakeYielded() { return std::exchange(handed_out_, {}); }

std::vector<RuntimeValue> ExecutionState::TakeFetches() { return std::exchange(handed_out_, {}); }

// The gradient of one yielded value, in full: absent stands for zeros, one element for all.
Result<RuntimeValue> ExecutionState::TakeIn(const Yield& yield, int index,
                                            RuntimeValue given) const {
  const int of = yield.resume_of[index];
  const PlannedValue& planned = plan_->values()[yield.resume_values[index]];
  const bool seen = !planned.known && of < static_cast<int>(yielded_.size());
  const bool is_tensor = planned.known || (seen && yielded_[of].is_tensor);
  const DType dtype = seen ? yielded_[of].dtype : planned.dtype;
  const Shape& shape = seen ? yielded_[of].shape : planned.shape;
  if (!is_tensor) {
    if (given.has_value()) return given;
    return Unsupported("the gradient of '" + yield.outputs[of].name +
                       "', which is no tensor, must be given");
  }
  const bool same_dtype = given.is_tensor() && given.tensor().dtype() == dtype;
  if (same_dtype && given.tensor().shape() == shape)
    return OnDeviceOf(yield.outputs[of], std::move(given));
  if (given.has_value() && !(same_dtype && given.tensor().elements() == 1)) {
    return InvalidArgument("the value given for '" + yield.outputs[of].name + "' must be " +
                           DTypeName(dtype) + shape.ToString() +
                           ", or absent, or one element; got " + given.Describe());
  }
  if (given.has_value() && !given.tensor().device().is_host()) {
    ASSIGN_OR_RETURN(given, CopyTo(given.tensor(), 0, AllocatorOf(0)));
    RETURN_IF_ERROR(WaitForDevices());
  }
  ASSIGN_OR_RETURN(Tensor full, Tensor::Allocate(dtype, shape, AllocatorOf(0)));
  const size_t size = DTypeSize(dtype);
  if (!given.has_value()) std::memset(full.raw(), 0, full.bytes());
  for (int64_t e = 0; given.has_value() && e < full.elements(); ++e) {
    std::memcpy(static_cast<char*>(full.raw()) + e * size, given.tensor().raw(), size);
  }
  return OnDeviceOf(yield.outputs[of], RuntimeValue(std::move(full)));
}

// The tensor on the device that the yield has handed `item` out on.
Result<RuntimeValue> ExecutionState::OnDeviceOf(const Yield::Item& item, RuntimeValue given) const {
  if (given.tensor().device() == plan_->devices()[item.device].device) return given;
  ASSIGN_OR_RETURN(Tensor there, CopyTo(given.tensor(), item.device, AllocatorOf(item.device)));
  if (item.device == 0) RETURN_IF_ERROR(WaitForDevices());
  return RuntimeValue(std::move(there));
}

Status ExecutionState::Resume(std::vector<RuntimeValue> values) try {
  if (stage_ != Stage::kYielded) return InvalidArgument("Resume needs a state that has yielded");
  const Yield& yield = plan_->yields()[yield_index_];
  if (values.size() != yield.resume_values.size()) {
    return InvalidArgument("the yield takes " + std::to_string(yield.resume_values.size()) +
                           " values, got " + std::to_string(values.size()));
  }
  for (size_t i = 0; i < values.size(); ++i) {
    if (yield.resume_values[i] == 0) continue;
    ASSIGN_OR_RETURN(RuntimeValue value, TakeIn(yield, static_cast<int>(i), std::move(values[i])));
    SetDynamic(yield.resume_values[i], std::move(value));
  }
  handed_out_.clear();
  handed_out_.reserve(plan_->fetches().size());
  yield_index_ = -1;
  stage_ = Stage::kReady;
  return {};
} catch (const std::bad_alloc&) {
  return OutOfMemory("memory ran out while a run was resumed");
}

}  // namespace caesura
