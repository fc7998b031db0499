// SPDX-License-Identifier: Apache-2.0
// A bias of halves as cuBLASLt takes it where C is of float32: as float32.
#include "core/kernels/cuda/prelude.cuh"

#ifndef T_TYPE
#define T_TYPE bf16
#endif
typedef T_TYPE T;

extern "C" __global__ void widen(const T* bias, float* wide, i64 n) {
  for (i64 i = blockIdx.x * (i64)blockDim.x + threadIdx.x; i < n; i += (i64)gridDim.x * blockDim.x)
    wide[i] = Load(bias + i);
}
