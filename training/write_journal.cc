// SPDX-License-Identifier: Apache-2.0
#include "training/write_journal.h"

#include <cstring>

#include "core/execute/execution_state.h"
#include "core/providers/cpu_provider.h"

namespace caesura {

void WriteJournal::OnEnter(const ExecutionPlan& plan, const ExecutionState&) {
  const auto count = static_cast<int>(plan.steps().size());
  // Results that are on a device come to the caller behind the last step.
  for (const Yield::Item& item : plan.fetches()) {
    if (plan.buffers()[plan.values()[item.value].buffer].device != 0) last_ = count;
  }
  if (last_ == count) return;
  for (last_ = count - 1; last_ >= 0; --last_) {
    const Step& step = plan.steps()[last_];
    if (step.provider->name() != kCpuProviderName || !step.bodies.empty()) return;
  }
}

void WriteJournal::OnStepBegin(const ExecutionPlan& plan, const ExecutionState& state, int index) {
  if (index > last_) return;
  const Step& step = plan.steps()[index];
  const uint32_t* ids = plan.arguments().data() + step.first_argument;
  // Where a late update writes is settled in the run: to some of its inputs.
  const bool late = step.kind == Step::Kind::kLate && step.node->phase() == Phase::kOptimizer;
  for (uint32_t i = late ? 0 : step.input_count; i < step.input_count + step.output_count; ++i) {
    const PlannedBuffer& buffer = plan.buffers()[ids[i]];
    if (buffer.kind == PlannedBuffer::Kind::kParameter) Keep(state, buffer.index);
  }
}

void WriteJournal::Keep(const ExecutionState& state, int parameter) {
  auto [it, fresh] = kept_.try_emplace(parameter);
  if (!fresh) return;
  const Tensor& tensor = state.options().parameters->tensor(parameter);
  const char* bytes = static_cast<const char*>(tensor.raw());
  it->second.assign(bytes, bytes + tensor.bytes());
}

bool WriteJournal::Undo(const ExecutionState& state) {
  if (state.program_counter() > last_) return false;
  for (const auto& [parameter, bytes] : kept_) {
    std::memcpy(state.options().parameters->tensor(parameter).raw(), bytes.data(), bytes.size());
  }
  return true;
}

}  // namespace caesura
