// SPDX-License-Identifier: Apache-2.0
// Reductions over the threads of a warp and of a block.
#ifndef CAESURA_CORE_KERNELS_CUDA_FUSED_ROWS_ROW_REDUCE_CUH_
#define CAESURA_CORE_KERNELS_CUDA_FUSED_ROWS_ROW_REDUCE_CUH_

#include "core/kernels/cuda/prelude.cuh"

struct RowSum {
  template <typename T>
  __device__ T operator()(T a, T b) const {
    return a + b;
  }
};
struct RowMax {
  template <typename T>
  __device__ T operator()(T a, T b) const {
    return ExtremeMax(a, b);
  }
};
struct RowMin {
  template <typename T>
  __device__ T operator()(T a, T b) const {
    return ExtremeMin(a, b);
  }
};

template <typename T, typename Op>
__device__ inline T WarpReduce(T v, Op op) {
#pragma unroll
  for (int m = 16; m > 0; m >>= 1) v = op(v, __shfl_xor_sync(0xffffffffu, v, m));
  return v;
}

// Merges the values of so many warps. REQUIRES: nobody reads `of_warp` any more.
template <typename T, typename Op>
__device__ inline T BlockReduce(T v, Op op, T* of_warp, int warps) {
  if (threadIdx.x % 32 == 0) of_warp[threadIdx.x / 32] = v;
  __syncthreads();
  if (warps > 8) {  // a lane a warp's value: reading all of them would keep shared memory busy
    const int lane = threadIdx.x % 32;
    v = of_warp[lane < warps ? lane : 0];
#pragma unroll
    for (int m = 16; m > 0; m >>= 1) {
      const T other = __shfl_down_sync(0xffffffffu, v, m);
      if (lane + m < warps) v = op(v, other);
    }
    return __shfl_sync(0xffffffffu, v, 0);
  }
  v = of_warp[0];
  for (int w = 1; w < warps; ++w) v = op(v, of_warp[w]);
  return v;
}

// Merges the values of the block's threads; each of them gets the result.
template <typename T, typename Op>
__device__ inline T RowReduce(T v, Op op) {
  __shared__ T of_warp[32];
  v = WarpReduce(v, op);
  if (blockDim.x <= 32) return v;
  __syncthreads();  // of_warp may still be read from the call before
  return BlockReduce(v, op, of_warp, blockDim.x / 32);
}

// The same for a known number of threads and a variable that all calls of the block hand on, by
// which they take turns in shared memory: one barrier then keeps them apart.
template <int kThreads, typename T, typename Op>
__device__ inline T RowReduceInTurn(T v, Op op, int& turn) {
  v = WarpReduce(v, op);
  if (kThreads <= 32) return v;
  __shared__ T of_warp[2][32];
  turn ^= 1;
  return BlockReduce(v, op, of_warp[turn], kThreads / 32);
}

#endif  // CAESURA_CORE_KERNELS_CUDA_FUSED_ROWS_ROW_REDUCE_CUH_
