// SPDX-License-Identifier: Apache-2.0
// Writes FACTOR * c, which repeats along axes of stride 0, into Y [m, n].
#include "core/kernels/cuda/prelude.cuh"

#ifndef T_TYPE
#define T_TYPE float
#define FACTOR 1.0f
#define WALK_NUMBERS 2
#define OFFSETS i64 offset0 = i
#endif
typedef T_TYPE T;
struct Walk {
  i64 at[WALK_NUMBERS];
};

extern "C" __global__ void fill(const T* c, T* y, i64 n, Walk walk) {
  for (i64 i = blockIdx.x * (i64)blockDim.x + threadIdx.x; i < n;
       i += (i64)gridDim.x * blockDim.x) {
    OFFSETS;
    Store(y + i, FACTOR * Load(c + offset0));
  }
}
