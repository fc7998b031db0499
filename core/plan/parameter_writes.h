// SPDX-License-Identifier: Apache-2.0
// The parameters that a step of a plan writes to.
#ifndef CAESURA_CORE_PLAN_PARAMETER_WRITES_H_
#define CAESURA_CORE_PLAN_PARAMETER_WRITES_H_

#include "core/plan/execution_plan.h"

namespace caesura {

// Calls fn(parameter) for each parameter that step `s` writes to, by its place in the ParameterSet.
template <typename Fn>
void ForEachWrittenParameter(const ExecutionPlan& plan, int s, const Fn& fn) {
  const PlanStep& step = plan.steps()[s];
  const uint32_t* ids = plan.arguments().data() + step.first_argument;
  // An update whose shapes are known only at run time writes to some of its inputs. AccumulatedSum
  // writes to none.
  const bool dynamic = step.kind == PlanStep::Kind::kDynamic &&
                       step.node->phase() == Phase::kOptimizer &&
                       !step.node->Is("AccumulatedSum", kCaesuraDomain);
  for (uint32_t i = dynamic ? 0 : step.input_count; i < step.input_count + step.output_count; ++i) {
    const PlannedBuffer& buffer = plan.buffers()[ids[i]];
    if (buffer.kind == PlannedBuffer::Kind::kParameter) fn(buffer.index);
  }
}

}  // namespace caesura

#endif  // CAESURA_CORE_PLAN_PARAMETER_WRITES_H_
