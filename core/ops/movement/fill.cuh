// SPDX-License-Identifier: Apache-2.0
// Sets all elements to *value, or to zero.
#include "core/kernels/cuda/prelude.cuh"

#ifndef S_TYPE
#define S_TYPE unsigned
#endif
typedef S_TYPE S;

// `pieces` of 16 bytes, then what is left of n elements.
extern "C" __global__ void fill(S* y, const S* value, i64 pieces, i64 n) {
  const S one = value == nullptr ? (S)0 : *value;
  union {
    S at[16 / sizeof(S)];
    uint4 all;
  } piece;
#pragma unroll
  for (int k = 0; k < 16 / (int)sizeof(S); ++k) piece.at[k] = one;
  const i64 from = blockIdx.x * (i64)blockDim.x + threadIdx.x, step = (i64)gridDim.x * blockDim.x;
  for (i64 i = from; i < pieces; i += step) ((uint4*)y)[i] = piece.all;
  for (i64 i = pieces * (i64)(16 / sizeof(S)) + from; i < n; i += step) y[i] = one;
}
