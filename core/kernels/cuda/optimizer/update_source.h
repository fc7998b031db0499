// SPDX-License-Identifier: Apache-2.0
// The CUDA source that all optimizer updates share: types, the rule, a step's numbers.
#ifndef CAESURA_CORE_KERNELS_CUDA_OPTIMIZER_UPDATE_SOURCE_H_
#define CAESURA_CORE_KERNELS_CUDA_OPTIMIZER_UPDATE_SOURCE_H_

#include <cstdint>
#include <string>

#include "core/kernels/spec/update_spec.h"

namespace caesura {

// As `struct Numbers` of the source.
struct CudaUpdateNumbers {
  CudaUpdateNumbers(const UpdateSpec& spec, bool flag);

  double written[6] = {};
  int64_t fed[6] = {};
  int64_t rate, flag, maximize, skip_nonfinite;
};

// S, C: a parameter's type in memory and in a thread; R, Q, V: that of the rates, the scale and
// scalar states; kScalars, at most 2; and
//   Step ReadStep(const R* rates, const i64* number, const Q* scale_at, const Numbers& numbers,
//                 const unsigned* error, const unsigned* gate)
//   Rule RuleOf(const Step& step, const Numbers& numbers, V* scalars)
// the rule of the step, or of the parameter with these scalars, which it changes.
std::string CudaUpdateSource(const UpdateSpec& spec, UpdateRule rule);

}  // namespace caesura

#endif  // CAESURA_CORE_KERNELS_CUDA_OPTIMIZER_UPDATE_SOURCE_H_
