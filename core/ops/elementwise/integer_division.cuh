// SPDX-License-Identifier: Apache-2.0
// Div and Mod of integers. RESULT is that of p and q, of which q is neither 0 nor -1, and
// BY_MINUS_ONE that for q = -1, which may not overflow.
#include "core/kernels/cuda/prelude.cuh"

#ifndef T_TYPE
#define T_TYPE int
#define IS_SIGNED true
#define RESULT p / q
#define BY_MINUS_ONE 0 - (u64)p
#define WALK_NUMBERS 3
#define OFFSETS i64 offset0 = i, offset1 = i
#endif
typedef T_TYPE T;
struct Walk {
  i64 at[WALK_NUMBERS];
};

extern "C" __global__ void divide(const T* a, const T* b, T* y, i64 n, unsigned* error,
                                  unsigned number, Walk walk) {
  for (i64 i = blockIdx.x * (i64)blockDim.x + threadIdx.x; i < n;
       i += (i64)gridDim.x * blockDim.x) {
    OFFSETS;
    const T p = a[offset0], q = b[offset1];
    T out = 0;
    if (q == 0) atomicCAS(error, 0u, number);
    else if (IS_SIGNED && q == (T)-1) out = (T)(BY_MINUS_ONE);
    else out = (T)(RESULT);
    y[i] = out;
  }
}
