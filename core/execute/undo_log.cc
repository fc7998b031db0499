// SPDX-License-Identifier: Apache-2.0
#include "core/execute/undo_log.h"

#include <algorithm>
#include <cstring>

#include "core/execute/execution_state.h"
#include "core/execute/parameter_writes.h"
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

}  // namespace

UndoLog::UndoLog(const ExecutionPlan& plan, UndoScope scope) : last_(LastStepAtRisk(plan, scope)) {
  const int end = std::min(last_ + 1, static_cast<int>(plan.steps().size()));
  for (int s = 0; s < end && !needed_; ++s)
    ForEachWrittenParameter(plan, s, [&](int) { needed_ = true; });
}

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
