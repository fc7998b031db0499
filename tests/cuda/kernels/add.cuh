// SPDX-License-Identifier: Apache-2.0
// y = a + b, one element a thread.
extern "C" __global__ void add(const float* a, const float* b, float* y, long long n) {
  const long long i = static_cast<long long>(blockIdx.x) * blockDim.x + threadIdx.x;
  if (i < n) y[i] = a[i] + b[i];
}
