// SPDX-License-Identifier: Apache-2.0
// Values that are read on another device than the one they are made on: each is copied there once,
// before its first reader.
#include "core/base/status_macros.h"
#include "core/kernels/kernel.h"
#include "core/plan/phases/plan_phases.h"

namespace caesura {

using Kind = PlannedBuffer::Kind;
using When = PlannedCopy::When;

int OutputDevice(const PlanDraft& plan, const NodeDraft& draft, int output) {
  return plan.data.devices.size() == 1
             ? 0
             : plan.placement->OutputDevice(*draft.node, *draft.provider, output);
}

namespace {

uint32_t NewCopy(PlanDraft& plan, uint32_t id, int device) {
  const auto copy = static_cast<uint32_t>(plan.values.size());
  ValueDraft value = plan.values[id];  // dense: TakeStrides knows of readers on other devices
  value.record = value.writer = -1;
  value.view_of = 0;
  plan.values.push_back(std::move(value));
  ValueDraft& made = plan.values.back();
  const size_t bytes = made.known ? BytesOf(made.shape, made.dtype) : 0;
  made.buffer =
      NewBuffer(plan, made.known ? Kind::kArena : Kind::kDynamic, bytes, -1, copy, device);
  plan.copies[uint64_t{id} << 8 | static_cast<uint64_t>(device)] = copy;
  return copy;
}

Result<uint32_t> ConstantOnDevice(PlanDraft& plan, uint32_t id, int device,
                                  const NodeDraft& reader) {
  const uint32_t copy = NewCopy(plan, id, device);
  BufferDraft& buffer = plan.buffers[plan.values[copy].buffer];
  const Tensor& tensor = plan.data.constants[plan.buffers[plan.values[id].buffer].index];
  const Value* value = plan.values[id].value;
  const ExecutionProvider& provider = *plan.data.devices[device].provider;
  const std::shared_ptr<DeviceConstants>& constants = plan.data.options.device_constants;
  const bool shared = constants != nullptr && value->graph()->Initializer(value) != nullptr;
  buffer.kind = Kind::kConstant;
  buffer.index = static_cast<int>(plan.data.constants.size());
  ASSIGN_OR_RETURN(Tensor there, shared ? constants->Get(value, tensor, provider)
                                        : CopyToDevice(tensor, provider));
  plan.data.constants.push_back(std::move(there));
  plan.data.copies.push_back({When::kPlanning, id, 0, device, buffer.bytes, reader.node});
  return copy;
}

// One of the two devices is the host, whose index is 0.
ComputeFunction CopyBetween(const PlanDraft& plan, int from, int to, size_t bytes) {
  const bool to_host = to == 0;
  return ComputeFunction([provider = plan.data.devices[to_host ? from : to].provider, to_host,
                          bytes](KernelContext& context) -> Status {
    RETURN_IF_ERROR(provider->Copy(to_host ? CopyKind::kToHost : CopyKind::kToDevice,
                                   context.Output<void>(0), context.Input<void>(0), bytes));
    return to_host ? provider->Synchronise() : Status();
  });
}

// Adds the step that copies the value to the device; the copy's value id.
uint32_t AddCopyStep(PlanDraft& plan, uint32_t id, int device, const NodeDraft& reader) {
  const int from = DeviceOf(plan, id);
  const Kind kind = plan.buffers[plan.values[id].buffer].kind;
  const uint32_t copy = NewCopy(plan, id, device);
  BufferDraft& buffer = plan.buffers[plan.values[copy].buffer];
  const ValueDraft& value = plan.values[id];
  const bool cached = plan.data.options.cache_values && value.from_parameters &&
                      (kind == Kind::kParameter || kind == Kind::kCached);
  PlanStep step;
  step.kind = cached ? PlanStep::Kind::kCached : PlanStep::Kind::kCopy;
  if (cached) {
    buffer.kind = Kind::kCached;
    buffer.index = step.index = plan.data.cache_entries++;
    step.cache_parameters = value.parameters;
  }
  if (value.known) step.compute = CopyBetween(plan, from, device, buffer.bytes);
  plan.data.copies.push_back(
      {cached ? When::kCached : When::kStep, id, from, device, buffer.bytes, reader.node});
  NodeDraft draft{reader.node,
                  reader.position,
                  {},
                  plan.data.devices[device == 0 ? from : device].provider.get(),
                  1};
  draft.inputs = {id};
  draft.outputs = {copy};
  AppendStep(plan, draft, std::move(step));
  return copy;
}

// The value that is `id` on another device.
Result<uint32_t> OnDevice(PlanDraft& plan, uint32_t id, int device, const NodeDraft& reader) {
  if (DeviceOf(plan, id) == device) return id;
  auto made = plan.copies.find(uint64_t{id} << 8 | static_cast<uint64_t>(device));
  if (made != plan.copies.end()) return made->second;
  if (device != 0 && DeviceOf(plan, id) != 0) {  // from one device to another: by way of the host
    ASSIGN_OR_RETURN(id, OnDevice(plan, id, 0, reader));
  }
  const BufferDraft& buffer = plan.buffers[plan.values[id].buffer];
  if (buffer.kind == Kind::kConstant && buffer.device == 0)
    return ConstantOnDevice(plan, id, device, reader);
  return AddCopyStep(plan, id, device, reader);
}

}  // namespace

Status CopyInputs(PlanDraft& plan, NodeDraft& draft) {
  if (plan.data.devices.size() == 1) return {};
  for (int i = 0; i < static_cast<int>(draft.inputs.size()); ++i) {
    const int device = plan.placement->InputDevice(*draft.node, *draft.provider, i);
    if (draft.inputs[i] == 0 || device == Placement::kAnywhere) continue;
    ASSIGN_OR_RETURN(draft.inputs[i], OnDevice(plan, draft.inputs[i], device, draft));
  }
  return {};
}

}  // namespace caesura
