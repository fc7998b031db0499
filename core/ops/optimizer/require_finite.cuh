// SPDX-License-Identifier: Apache-2.0
// RequireFinite: the number of the error where *x is not finite.
#include "core/kernels/cuda/prelude.cuh"
#include "core/ops/optimizer/update_rules.h"

#ifndef S_TYPE
#define S_TYPE float
#endif
typedef S_TYPE S;

extern "C" __global__ void require_finite(const S* x, unsigned* error, unsigned number) {
  if (!caesura::IsFinite((double)Load(x))) atomicCAS(error, 0u, number);
}
