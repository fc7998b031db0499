// SPDX-License-Identifier: Apache-2.0
// Pad but for constants. Along an axis: `extent` elements of the result, the first of which stands
// for number `from` of `count` elements; those begin at `first`, `stride` apart. OUTSIDE is the
// number of the element that stands for k, which is none of them.
#include "core/kernels/cuda/prelude.cuh"

#ifndef S_TYPE
#define S_TYPE unsigned
#define RANK 1
#define OUTSIDE Edge
#endif
typedef S_TYPE S;

struct Axis {
  i64 extent, from, count, first, stride;
};
struct Axes {
  Axis at[RANK];
};

// Mirrored at the first and the last element, over and over; repeated; or the nearest element.
__device__ inline i64 Reflect(i64 k, i64 count) {
  const i64 period = count > 1 ? 2 * (count - 1) : 1, phase = (k % period + period) % period;
  return phase < count ? phase : period - phase;
}
__device__ inline i64 Wrap(i64 k, i64 count) { return (k % count + count) % count; }
__device__ inline i64 Edge(i64 k, i64 count) { return k < 0 ? 0 : count - 1; }

extern "C" __global__ void pad(const S* x, S* y, i64 n, Axes axes) {
  for (i64 i = blockIdx.x * (i64)blockDim.x + threadIdx.x; i < n;
       i += (i64)gridDim.x * blockDim.x) {
    i64 rest = i, source = 0;
#pragma unroll
    for (int a = RANK - 1; a >= 0; --a) {
      const Axis axis = axes.at[a];
      i64 k = rest % axis.extent + axis.from;
      rest /= axis.extent;
      if (k < 0 || k >= axis.count) k = OUTSIDE(k, axis.count);
      source += (axis.first + k) * axis.stride;
    }
    y[i] = x[source];
  }
}
