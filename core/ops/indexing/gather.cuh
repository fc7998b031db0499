// SPDX-License-Identifier: Apache-2.0
// Gather: data [outer, dim, inner], `count` indices.
#include "core/kernels/cuda/prelude.cuh"

#ifndef S_TYPE
#define S_TYPE float
#define I_TYPE i64
#endif
typedef S_TYPE S;
typedef I_TYPE I;

template <typename T>
__device__ inline void Gather(const T* x, const I* indices, T* y, i64 n, i64 dim, i64 inner,
                              i64 count, unsigned* error, unsigned number) {
  for (i64 i = blockIdx.x * (i64)blockDim.x + threadIdx.x; i < n;
       i += (i64)gridDim.x * blockDim.x) {
    const i64 column = i % inner, j = i / inner % count, o = i / inner / count;
    i64 index = Load(indices + j);
    if (index < 0) index += dim;
    if (index < 0 || index >= dim) {
      atomicCAS(error, 0u, number);
      index = 0;
    }
    y[i] = x[(o * dim + index) * inner + column];
  }
}

extern "C" __global__ void gather(const S* x, const I* indices, S* y, i64 n, i64 dim, i64 inner,
                                  i64 count, unsigned* error, unsigned number) {
  Gather(x, indices, y, n, dim, inner, count, error, number);
}

extern "C" __global__ void gather_wide(const uint4* x, const I* indices, uint4* y, i64 n, i64 dim,
                                       i64 inner, i64 count, unsigned* error, unsigned number) {
  Gather(x, indices, y, n, dim, inner, count, error, number);
}
