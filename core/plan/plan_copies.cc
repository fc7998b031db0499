// SPDX-License-Identifier: Apache-2.0
// Values that are read on another device than the one they are made on: each is copied there once,
// before its first reader.
#include "core/base/status_macros.h"
#include "core/kernels/kernel_context.h"
#include "core/plan/plan_builder.h"

namespace caesura {

using When = PlannedCopy::When;

int PlanBuilder::OutputDevice(const Draft& draft, int output) const {
  return plan_->devices_.size() == 1
             ? 0
             : placement_->OutputDevice(*draft.node, *draft.provider, output);
}

Status PlanBuilder::PlaceInputs(Draft& draft) {
  if (plan_->devices_.size() == 1) return {};
  for (int i = 0; i < static_cast<int>(draft.inputs.size()); ++i) {
    const int device = placement_->InputDevice(*draft.node, *draft.provider, i);
    if (draft.inputs[i] == 0 || device == Placement::kAnywhere) continue;
    ASSIGN_OR_RETURN(draft.inputs[i], OnDevice(draft.inputs[i], device, draft));
  }
  return {};
}

uint32_t PlanBuilder::NewCopy(uint32_t id, int device) {
  const auto copy = static_cast<uint32_t>(plan_->values_.size());
  PlannedValue value =
      plan_->values_[id];  // dense: ReadersTakeStrides knows of readers on other devices
  plan_->values_.push_back(value);
  known_values_.push_back(known_values_[id]);
  parameters_of_.push_back(std::vector<int>(parameters_of_[id]));
  from_parameters_.push_back(from_parameters_[id]);
  last_use_.push_back(last_use_[id]);
  record_of_.push_back(-1);
  const size_t bytes =
      value.known ? static_cast<size_t>(value.shape.elements()) * DTypeSize(value.dtype) : 0;
  plan_->values_[copy].buffer =
      NewBuffer(value.known ? Kind::kArena : Kind::kDynamic, bytes, -1, copy, device);
  copies_[uint64_t{id} << 8 | static_cast<uint64_t>(device)] = copy;
  return copy;
}

Result<uint32_t> PlanBuilder::ConstantOnDevice(uint32_t id, int device, const Draft& reader) {
  const uint32_t copy = NewCopy(id, device);
  PlannedBuffer& buffer = plan_->buffers_[plan_->values_[copy].buffer];
  const Tensor& tensor = plan_->constants_[plan_->buffers_[plan_->values_[id].buffer].index];
  const Value* value = plan_->values_[id].value;
  const ExecutionProvider& provider = *plan_->devices_[device].provider;
  const bool shared =
      plan_->options_.device_constants != nullptr && value->graph()->Initializer(value) != nullptr;
  buffer.kind = Kind::kConstant;
  buffer.index = static_cast<int>(plan_->constants_.size());
  ASSIGN_OR_RETURN(Tensor there,
                   shared ? plan_->options_.device_constants->Get(value, tensor, provider)
                          : CopyToDevice(tensor, provider));
  plan_->constants_.push_back(std::move(there));
  plan_->copies_.push_back({When::kPlanning, id, 0, device, buffer.bytes, reader.node});
  return copy;
}

Result<uint32_t> PlanBuilder::OnDevice(uint32_t id, int device, const Draft& reader) {
  if (DeviceOf(id) == device) return id;
  auto made = copies_.find(uint64_t{id} << 8 | static_cast<uint64_t>(device));
  if (made != copies_.end()) return made->second;
  if (device != 0 && DeviceOf(id) != 0) {  // from one device to another: by way of the host
    ASSIGN_OR_RETURN(id, OnDevice(id, 0, reader));
  }
  const int from = DeviceOf(id);
  const Kind kind = plan_->buffers_[plan_->values_[id].buffer].kind;
  if (kind == Kind::kConstant && from == 0) return ConstantOnDevice(id, device, reader);
  const uint32_t copy = NewCopy(id, device);
  PlannedBuffer& buffer = plan_->buffers_[plan_->values_[copy].buffer];
  Step step;
  step.kind = Step::Kind::kCopy;
  if (plan_->options_.cache_values && from_parameters_[id] &&
      (kind == Kind::kParameter || kind == Kind::kCached)) {
    step.kind = Step::Kind::kCached;
    buffer.kind = Kind::kCached;
    buffer.index = step.index = plan_->cache_entries_++;
    step.cache_parameters = parameters_of_[id];
  }
  if (plan_->values_[id].known) {
    step.compute = [plan = plan_.get(), device, from,
                    bytes = buffer.bytes](KernelContext& context) -> Status {
      RETURN_IF_ERROR(
          plan->CopyBytes(device, context.Output<void>(0), from, context.Input<void>(0), bytes));
      return device == 0 ? plan->devices()[from].provider->Synchronise() : Status();
    };
  }
  const bool cached = step.kind == Step::Kind::kCached;
  plan_->copies_.push_back(
      {cached ? When::kCached : When::kStep, id, from, device, buffer.bytes, reader.node});
  Draft draft{reader.node,
              reader.position,
              {},
              plan_->devices_[device == 0 ? from : device].provider.get(),
              1};
  draft.inputs = {id};
  draft.outputs = {copy};
  FinishStep(draft, std::move(step), 0);
  return copy;
}

// What is handed out elsewhere than it is.
void PlanBuilder::AddHandedOutCopies() {
  auto add = [&](const Yield::Item& item, const Node* reader) {
    const PlannedBuffer& buffer = plan_->buffers_[plan_->values_[item.value].buffer];
    if (item.device == buffer.device) return;
    const PlannedValue& value = plan_->values_[item.value];
    const size_t bytes =
        value.known ? static_cast<size_t>(value.shape.elements()) * DTypeSize(value.dtype) : 0;
    plan_->copies_.push_back(
        {When::kHandedOut, item.value, buffer.device, item.device, bytes, reader});
  };
  for (const Yield::Item& item : plan_->fetches_) add(item, nullptr);
}

}  // namespace caesura
