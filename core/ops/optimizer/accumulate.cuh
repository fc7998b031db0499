// SPDX-License-Identifier: Apache-2.0
// reset ? value : buffer + value; `out` may be either of them.
#include "core/kernels/cuda/prelude.cuh"

#ifndef S_TYPE
#define S_TYPE float
#endif
typedef S_TYPE S;

extern "C" __global__ void accumulate(const S* buffer, const S* value, const bool* reset, S* out,
                                      i64 n) {
  const bool fresh = Load(reset);
  for (i64 i = blockIdx.x * (i64)blockDim.x + threadIdx.x; i < n; i += (i64)gridDim.x * blockDim.x)
    Store(out + i, fresh ? Load(value + i) : Load(buffer + i) + Load(value + i));
}
