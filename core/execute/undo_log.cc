// SPDX-License-Identifier: Apache-2.0
#include "core/execute/undo_log.h"

#include <algorithm>
#include <cstring>
#include <vector>

#include "core/base/status_macros.h"
#include "core/execute/execution_state.h"
#include "core/execute/parameter_writes.h"
#include "core/providers/copy_all.h"
#include "core/providers/cpu_provider.h"

namespace caesura {
namespace {

int LastStepAtRisk(const ExecutionPlan& plan, UndoScope scope) {
  const auto count = static_cast<int>(plan.steps().size());
  if (scope == UndoScope::kAll) return count;
  for (const Yield::Item& item : plan.fetches()) {
    const PlannedBuffer& buffer = plan.buffers()[plan.values()[item.value].buffer];
    const bool handed_over = item.move && (buffer.kind == PlannedBuffer::Kind::kFetch ||
                                           buffer.kind == PlannedBuffer::Kind::kDynamic);
    if (buffer.device != 0 || !handed_over) return count;
  }
  int last = count - 1;
  const ExecutionProvider* cpu = nullptr;  // the one whose name was looked at
  for (; last >= 0; --last) {
    const Step& step = plan.steps()[last];
    if (step.kind != Step::Kind::kCompute || !step.bodies.empty()) break;
    if (step.provider == cpu) continue;
    if (step.provider->name() != kCpuProviderName) break;
    cpu = step.provider;
  }
  return last;
}

// The tensor's place among the devices; BindParameters has found it.
int DeviceOfParameter(const std::vector<DeviceMemory>& devices, const Tensor& parameter) {
  int d = 0;
  while (devices[d].device != parameter.device()) ++d;
  return d;
}

}  // namespace

UndoLog::UndoLog(const ExecutionPlan& plan, UndoScope scope) : last_(LastStepAtRisk(plan, scope)) {
  const int end = std::min(last_ + 1, static_cast<int>(plan.steps().size()));
  for (int s = 0; s < end && !needed_; ++s)
    ForEachWrittenParameter(plan, s, [&](int) { needed_ = true; });
}

Status UndoLog::KeepOutputs(const ExecutionState& state, int step) {
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

bool UndoLog::Undo(const ExecutionState& state) const {
  if (state.program_counter() > last_) return false;
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
