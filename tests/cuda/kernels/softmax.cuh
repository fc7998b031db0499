// SPDX-License-Identifier: Apache-2.0
// The softmax of each row, a block a row.
#include <cuda_bf16.h>

__device__ inline float load(const float* x, long long i) { return x[i]; }
__device__ inline float load(const __nv_bfloat16* x, long long i) { return __bfloat162float(x[i]); }
__device__ inline void store(float* y, long long i, float v) { y[i] = v; }
__device__ inline void store(__nv_bfloat16* y, long long i, float v) { y[i] = __float2bfloat16(v); }

struct Largest {
  static constexpr float kFirst = -3.402823466e38f;
  __device__ float operator()(float a, float b) const { return fmaxf(a, b); }
};
struct Sum {
  static constexpr float kFirst = 0;
  __device__ float operator()(float a, float b) const { return a + b; }
};

template <typename Op>
__device__ float warp_reduce(float v, Op op) {
#pragma unroll
  for (int m = 16; m > 0; m >>= 1) v = op(v, __shfl_xor_sync(0xffffffffu, v, m));
  return v;
}

template <typename Op>
__device__ float block_reduce(float v, Op op, float* of_warp) {
  const int lane = threadIdx.x % 32, warp = threadIdx.x / 32, warps = blockDim.x / 32;
  v = warp_reduce(v, op);
#ifndef BUG_NO_BARRIER
  __syncthreads();  // of_warp may still be read from the call before
#endif
  if (lane == 0) of_warp[warp] = v;
  __syncthreads();
  return warp_reduce(lane < warps ? of_warp[lane] : Op::kFirst, op);
}

template <typename T, int kThreads>
__global__ void __launch_bounds__(kThreads)
    softmax(const T* __restrict__ x, T* __restrict__ y, int columns) {
  const long long row = static_cast<long long>(blockIdx.x) * columns;
  __shared__ float of_warp[32];
  float largest = Largest::kFirst, sum = 0;
  for (int i = threadIdx.x; i < columns; i += kThreads) largest = fmaxf(largest, load(x, row + i));
  largest = block_reduce(largest, Largest{}, of_warp);
  for (int i = threadIdx.x; i < columns; i += kThreads) sum += expf(load(x, row + i) - largest);
  sum = block_reduce(sum, Sum{}, of_warp);
  for (int i = threadIdx.x; i < columns; i += kThreads)
    store(y, row + i, expf(load(x, row + i) - largest) / sum);
}
