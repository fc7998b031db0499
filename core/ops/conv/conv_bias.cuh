// SPDX-License-Identifier: Apache-2.0
// The bias of Y [batch, channels, places], and its gradient: sums of halves in float32, in one
// order.
#include "core/kernels/cuda/row_reduce.cuh"

#ifndef S_TYPE
#define S_TYPE float
#define C_TYPE float
#endif
typedef S_TYPE S;
typedef C_TYPE C;

extern "C" __global__ void add_bias(const S* bias, S* y, i64 n, i64 channels, i64 places) {
  for (i64 i = blockIdx.x * (i64)blockDim.x + threadIdx.x; i < n; i += (i64)gridDim.x * blockDim.x)
    Store(y + i, Load(y + i) + Load(bias + i / places % channels));
}

extern "C" __global__ void bias_gradient(const S* dy, S* db, i64 batch, i64 channels, i64 places) {
  const i64 c = blockIdx.x;
  C sum = 0;
  for (i64 i = threadIdx.x; i < batch * places; i += blockDim.x)
    sum += Load(dy + (i / places * channels + c) * places + i % places);
  sum = RowReduce(sum, RowSum());
  if (threadIdx.x == 0) Store(db + c, sum);
}
