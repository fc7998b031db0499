// SPDX-License-Identifier: Apache-2.0
// GlobalNorm: one block adds the parts up.
#include "core/kernels/cuda/row_reduce.cuh"

#ifndef N_TYPE
#define N_TYPE float
#endif
typedef N_TYPE N;

extern "C" __global__ void root(const double* parts, i64 n, N* norm) {
  double sum = 0;
#pragma unroll 4
  for (i64 i = threadIdx.x; i < n; i += blockDim.x) sum += parts[i];
  sum = RowReduce(sum, RowSum());
  if (threadIdx.x == 0) Store(norm, sqrt(sum));
}
