// SPDX-License-Identifier: Apache-2.0
#include "core/execute/undo_log.h"

#include <algorithm>
#include <cstring>
#include <utility>
#include <vector>

#include "core/base/status_macros.h"
#include "core/execute/execution_state.h"
#include "core/plan/parameter_writes.h"
#include "core/providers/copy_all.h"
#include "core/providers/write_gate.h"

namespace caesura {
namespace {

// The tensor's place among the devices; BindParameters has found it.
int DeviceOfParameter(const std::vector<DeviceMemory>& devices, const Tensor& parameter) {
  int d = 0;
  while (devices[d].device != parameter.device()) ++d;
  return d;
}

}  // namespace

UndoLog::UndoLog(const ExecutionPlan& plan, UndoScope scope, bool may_hold)
    : last_(scope == UndoScope::kAll ? static_cast<int>(plan.steps().size()) : plan.last_risk()),
      needed_(plan.first_write() < static_cast<int>(plan.steps().size()) &&
              plan.first_write() <= last_),
      may_hold_(needed_ && may_hold && plan.first_held() < static_cast<int>(plan.steps().size())),
      held_(may_hold_ ? plan.first_held() : static_cast<int>(plan.steps().size())) {}

UndoLog::~UndoLog() {
  if (closed_ != nullptr) static_cast<void>(closed_->OpenGate(false));
}

Result<bool> UndoLog::Hold(const PlanStep& step) {
  const WriteGate* gate = step.Gate();
  if (gate == nullptr || released_ != nullptr) return false;
  if (closed_ == nullptr) {
    ASSIGN_OR_RETURN(const bool closed, gate->CloseGate());
    if (closed) closed_ = gate;
  }
  return closed_ == gate;
}

Status UndoLog::Release() {
  if (closed_ == nullptr) return {};
  const Status opened = closed_->OpenGate(true);
  interrupted_ = !opened.ok() && closed_->was_interrupted();
  if (opened.ok()) released_ = std::exchange(closed_, nullptr);
  return opened;
}

Status UndoLog::Wait(const ExecutionProvider& provider) {
  const auto* gate = dynamic_cast<const WriteGate*>(&provider);
  if (gate == nullptr || gate != released_) return provider.Synchronise();
  const Status done = gate->WaitForHeld();
  if (done.code() == StatusCode::kInvalidArgument) released_ = nullptr;  // none has written
  return done;
}

std::shared_ptr<Buffer> UndoLog::HostMemory(size_t bytes) const {
  return closed_ == nullptr ? nullptr : closed_->HostMemory(bytes);
}

Status UndoLog::KeepOutputs(const ExecutionState& state, int step) {
  if (step >= held_) {
    ASSIGN_OR_RETURN(const bool waits, Hold(state.plan().steps()[step]));
    if (waits) return {};
  }
  const std::vector<DeviceMemory>& devices = state.plan().devices();
  std::map<int, Tensor> fresh;                    // by parameter
  std::map<int, std::vector<DeviceCopy>> copies;  // by device: an update may write many parameters
  Status status;
  ForEachWrittenParameter(state.plan(), step, [&](int parameter) {
    if (!status.ok() || kept_.count(parameter) > 0 || fresh.count(parameter) > 0) return;
    const Tensor& own = state.options().parameters->tensor(parameter);
    const int d = DeviceOfParameter(devices, own);
    Result<Tensor> room = Tensor::Allocate(own.dtype(), own.shape(), *devices[d].allocator);
    if (!room.ok()) {
      status = room.status();
      return;
    }
    copies[d].push_back({room->raw(), own.raw(), own.bytes()});
    fresh.emplace(parameter, *std::move(room));
  });
  RETURN_IF_ERROR(status);
  for (const auto& [d, of_device] : copies) {
    if (d != 0) {
      RETURN_IF_ERROR(CopyAll(*devices[d].provider, of_device));
      continue;
    }
    for (const DeviceCopy& copy : of_device) {
      if (copy.bytes > 0) std::memcpy(copy.to, copy.from, copy.bytes);
    }
  }
  kept_.merge(fresh);
  return {};
}

bool UndoLog::Undo(const ExecutionState& state) {
  if (closed_ != nullptr) static_cast<void>(std::exchange(closed_, nullptr)->OpenGate(false));
  if (released_ != nullptr || state.program_counter() > last_) return false;
  const std::vector<DeviceMemory>& devices = state.plan().devices();
  for (const auto& [parameter, kept] : kept_) {
    const Tensor& own = state.options().parameters->tensor(parameter);
    const int d = DeviceOfParameter(devices, own);
    if (!state.plan().CopyBytes(d, own.raw(), d, kept.raw(), kept.bytes()).ok()) return false;
  }
  // Other failures are of the run's kernels, and the run has failed already.
  return std::all_of(devices.begin(), devices.end(), [](const DeviceMemory& memory) {
    return memory.device.is_host() ||
           memory.provider->Synchronise().code() != StatusCode::kProviderFailure;
  });
}

}  // namespace caesura
