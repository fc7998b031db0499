// SPDX-License-Identifier: Apache-2.0
#include "core/profile/step_sizes.h"

#include <cassert>

namespace caesura {

using Kind = PlannedBuffer::Kind;

size_t ValueBytes(const RuntimeValue& value) {
  if (value.is_tensor()) return value.tensor().bytes();
  size_t bytes = 0;
  if (value.is_sequence()) {
    for (const RuntimeValue& element : value.sequence()) bytes += ValueBytes(element);
  }
  if (value.is_map()) bytes = value.map().keys.bytes() + value.map().values.bytes();
  return bytes;
}

size_t ValueBytes(const ExecutionState& state, uint32_t id) {
  if (id == 0) return 0;
  const PlannedValue& value = state.plan().values()[id];
  if (state.plan().buffers()[value.buffer].kind == Kind::kDynamic)
    return ValueBytes(state.ValueOf(id));
  return static_cast<size_t>(value.shape.elements()) * DTypeSize(value.dtype);
}

StepSizes SizesOf(const ExecutionState& state, int index) {
  const ExecutionPlan& plan = state.plan();
  assert(0 <= index && index < static_cast<int>(plan.steps().size()));
  const PlanStep& step = plan.steps()[index];
  StepSizes sizes;
  for (uint32_t a = 0; a < step.input_count + step.output_count; ++a) {
    const size_t bytes = ValueBytes(state, plan.argument_values()[step.first_argument + a]);
    const Kind kind = plan.buffers()[plan.arguments()[step.first_argument + a]].kind;
    const bool lasts = kind == Kind::kParameter || kind == Kind::kConstant || kind == Kind::kCached;
    if (a < step.input_count) (lasts ? sizes.parameter_bytes : sizes.activation_bytes) += bytes;
    else if (step.kind != PlanStep::Kind::kYield)
      sizes.output_bytes += bytes;  // a yield's come from the caller
  }
  return sizes;
}

}  // namespace caesura
