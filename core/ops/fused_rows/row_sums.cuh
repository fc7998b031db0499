// SPDX-License-Identifier: Apache-2.0
// Sums over rows: the last of the blocks adds up what each has stored.
#ifndef CAESURA_CORE_KERNELS_CUDA_FUSED_ROWS_ROW_SUMS_CUH_
#define CAESURA_CORE_KERNELS_CUDA_FUSED_ROWS_ROW_SUMS_CUH_

#include "core/kernels/cuda/prelude.cuh"

// True in all threads of the block that comes last of so many; it sees what the others have stored.
// The counter is zero before and after.
__device__ inline bool IsLast(unsigned* counter, i64 blocks) {
  __shared__ bool last;
  __syncthreads();
  if (threadIdx.x == 0) {
    __threadfence();
    last = atomicInc(counter, (unsigned)blocks - 1) == blocks - 1;
    __threadfence();
  }
  __syncthreads();
  return last;
}

// The sum, in order, of a column vector of parts; eight loads are under way at a time.
template <int N, typename T>
__device__ inline Vector<T, N> AddUp(const T* part, int begin, int end, int step, int columns) {
  Vector<T, N> total = {};
  for (int p = begin; p < end; p += 8 * step) {
    Vector<T, N> of[8];
#pragma unroll
    for (int u = 0; u < 8; ++u) {
      if (p + u * step < end) of[u] = LoadVector<N, true>(part + (p + u * step) * columns);
    }
#pragma unroll
    for (int u = 0; u < 8; ++u) {
      if (p + u * step >= end) break;
#pragma unroll
      for (int j = 0; j < N; ++j) total.at[j] += of[u].at[j];
    }
  }
  return total;
}

#endif  // CAESURA_CORE_KERNELS_CUDA_FUSED_ROWS_ROW_SUMS_CUH_
