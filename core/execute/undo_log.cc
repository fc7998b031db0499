// SPDX-License-Identifier: Apache-2.0
#include "core/execute/undo_log.h"

#include <cstring>

#include "core/execute/execution_state.h"
#include "core/execute/parameter_writes.h"
#include "core/providers/cpu_provider.h"

namespace caesura {
namespace {

// The last step that may fail for a provider's reason; the number of steps where it is the results'
// way to the caller.
int LastStepAtRisk(const ExecutionPlan& plan) {
  const auto count = static_cast<int>(plan.steps().size());
  for (const Yield::Item& item : plan.fetches()) {
    if (plan.buffers()[plan.values()[item.value].buffer].device != 0) return count;
  }
  int last = count - 1;
  for (; last >= 0; --last) {
    const Step& step = plan.steps()[last];
    if (step.provider->name() != kCpuProviderName || !step.bodies.empty()) break;
  }
  return last;
}

}  // namespace

UndoLog::UndoLog(const ExecutionPlan& plan) : last_(LastStepAtRisk(plan)) {}

void UndoLog::KeepOutputs(const ExecutionState& state, int step) {
  ForEachWrittenParameter(state.plan(), step, [&](int parameter) {
    auto [it, fresh] = kept_.try_emplace(parameter);
    if (!fresh) return;
    const Tensor& tensor = state.options().parameters->tensor(parameter);
    const char* bytes = static_cast<const char*>(tensor.raw());
    it->second.assign(bytes, bytes + tensor.bytes());
  });
}

bool UndoLog::Undo(const ExecutionState& state) const {
  if (state.program_counter() > last_) return false;
  for (const auto& [parameter, bytes] : kept_) {
    std::memcpy(state.options().parameters->tensor(parameter).raw(), bytes.data(), bytes.size());
  }
  return true;
}

}  // namespace caesura
