// SPDX-License-Identifier: Apache-2.0
// All optimizer updates hand these to update_step.cuh: types, the rule, a step's numbers.
#ifndef CAESURA_CORE_OPS_OPTIMIZER_CUDA_UPDATE_SOURCE_H_
#define CAESURA_CORE_OPS_OPTIMIZER_CUDA_UPDATE_SOURCE_H_

#include <cstdint>
#include <string>

#include "core/ops/optimizer/update_spec.h"

namespace caesura {

// The C++ twin of `struct Numbers` of update_step.cuh: same members, same layout.
struct CudaUpdateNumbers {
  CudaUpdateNumbers(const UpdateSpec& spec, bool flag);

  double written[6] = {};
  int64_t fed[6] = {};
  int64_t rate, step_offset, flag, maximize, skip_nonfinite, skip_infinite;
};

// The macros of update_step.cuh.
std::string CudaUpdateMacros(const UpdateSpec& spec, UpdateRule rule);

}  // namespace caesura

#endif  // CAESURA_CORE_OPS_OPTIMIZER_CUDA_UPDATE_SOURCE_H_
