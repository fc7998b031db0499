// SPDX-License-Identifier: Apache-2.0
// The bytes that a step reads and writes.
#ifndef CAESURA_CORE_PROFILE_STEP_SIZES_H_
#define CAESURA_CORE_PROFILE_STEP_SIZES_H_

#include <cstddef>

#include "core/execute/execution_state.h"

namespace caesura {

struct StepSizes {
  size_t activation_bytes = 0;  // inputs that this run was given or has computed
  size_t parameter_bytes = 0;   // inputs that outlive the run: parameters, constants, cached values
  size_t output_bytes = 0;
};

// Bytes of a value: of all elements of a sequence, of a map's keys and values; 0 for nothing.
// Strings count as objects.
size_t ValueBytes(const RuntimeValue& value);
// The bytes of value `id` of the plan, whether they are planned or show only at run time.
size_t ValueBytes(const ExecutionState& state, uint32_t id);

// To be called as soon as the step has run: what it read counts only until it is released.
// REQUIRES: the plan has such a step.
StepSizes SizesOf(const ExecutionState& state, int step);

}  // namespace caesura

#endif  // CAESURA_CORE_PROFILE_STEP_SIZES_H_
