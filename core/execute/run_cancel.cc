// SPDX-License-Identifier: Apache-2.0
#include "core/execute/run_cancel.h"

#include <algorithm>

namespace caesura {

thread_local RunCancel::Flag RunCancel::current_;

bool HasWritten(const ExecutionState& state) {
  const ExecutionPlan& plan = state.plan();
  for (int i = 0; i < state.program_counter(); ++i) {
    const Step& step = plan.steps()[i];
    if (step.kind == Step::Kind::kDynamic && step.node->phase() == Phase::kOptimizer) return true;
    const uint32_t* outputs = plan.arguments().data() + step.first_argument + step.input_count;
    const bool writes = std::any_of(outputs, outputs + step.output_count, [&](uint32_t id) {
      return plan.buffers()[id].kind == PlannedBuffer::Kind::kParameter;
    });
    if (writes) return true;
  }
  return false;
}

}  // namespace caesura
