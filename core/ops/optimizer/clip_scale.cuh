// SPDX-License-Identifier: Apache-2.0
// ClipScale: the factor of all gradients.
#include "core/kernels/cuda/prelude.cuh"
#include "core/ops/optimizer/update_rules.h"

#ifndef N_TYPE
#define N_TYPE float
#define F_TYPE float
#endif
typedef N_TYPE N;
typedef F_TYPE F;

extern "C" __global__ void clip_scale(const N* norm, const F* factor, double most, int skip,
                                      double* scale) {
  *scale = caesura::ClippedScale((double)*norm, (double)*factor, most, skip != 0);
}
