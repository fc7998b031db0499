// SPDX-License-Identifier: Apache-2.0
// The layer norm of each row, a warp a row; gamma lies in dynamic shared memory.
__device__ inline float warp_sum(float v) {
#pragma unroll
  for (int m = 16; m > 0; m >>= 1) v += __shfl_xor_sync(0xffffffffu, v, m);
  return v;
}

extern "C" __global__ void layer_norm(const float* x, const float* gamma, const float* beta,
                                      float* y, int rows, int columns, float epsilon) {
  extern __shared__ float scale[];
  for (int i = threadIdx.y * 32 + threadIdx.x; i < columns; i += blockDim.y * 32)
    scale[i] = gamma[i];
  __syncthreads();
  const int row = blockIdx.x * blockDim.y + threadIdx.y;
  if (row >= rows) return;
  x += static_cast<long long>(row) * columns;
  y += static_cast<long long>(row) * columns;
  float sum = 0, square = 0;
  for (int i = threadIdx.x; i < columns; i += 32) sum += x[i];
  const float mean = warp_sum(sum) / columns;
  for (int i = threadIdx.x; i < columns; i += 32) square += (x[i] - mean) * (x[i] - mean);
  const float factor = rsqrtf(warp_sum(square) / columns + epsilon);
  for (int i = threadIdx.x; i < columns; i += 32)
    y[i] = (x[i] - mean) * factor * scale[i] + beta[i];
}
