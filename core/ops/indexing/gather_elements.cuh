// SPDX-License-Identifier: Apache-2.0
// GatherElements: along the axis of the indices data has a stride of `step`.
#include "core/kernels/cuda/prelude.cuh"

#ifndef S_TYPE
#define S_TYPE float
#define I_TYPE i64
#define WALK_NUMBERS 2
#define OFFSETS i64 offset0 = i
#endif
typedef S_TYPE S;
typedef I_TYPE I;
struct Walk {
  i64 at[WALK_NUMBERS];
};

extern "C" __global__ void gather_elements(const S* x, const I* indices, S* y, i64 n, i64 dim,
                                           i64 step, unsigned* error, unsigned number, Walk walk) {
  for (i64 i = blockIdx.x * (i64)blockDim.x + threadIdx.x; i < n;
       i += (i64)gridDim.x * blockDim.x) {
    i64 index = Load(indices + i);
    if (index < 0) index += dim;
    if (index < 0 || index >= dim) {
      atomicCAS(error, 0u, number);
      index = 0;
    }
    OFFSETS;
    y[i] = x[offset0 + index * step];
  }
}
