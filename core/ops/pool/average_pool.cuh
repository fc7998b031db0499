// SPDX-License-Identifier: Apache-2.0
// AveragePool and its gradient. WINDOW, WINDOW_PAD and END_PAD are those of the node, for the
// divisors.
#include "core/ops/pool/pool_windows.cuh"

#ifndef INCLUDE_PAD
#define INCLUDE_PAD false
#define ALL_WHOLE false
#define WINDOW0 1
#define WINDOW1 1
#define WINDOW2 1
#define WINDOW_PAD0 0
#define WINDOW_PAD1 0
#define WINDOW_PAD2 0
#define END_PAD0 0
#define END_PAD1 0
#define END_PAD2 0
#endif

// A window's positions along an axis from `low` to before `high`.
__device__ inline Index Positions(Index start, Index kernel, Index step, Index low, Index high) {
  const Index first = start >= low ? 0 : (low - start + step - 1) / step;
  Index end = start >= high ? 0 : (high - start - 1) / step + 1;
  if (end > kernel) end = kernel;
  return end > first ? end - first : 0;
}
#define POSITIONS(o, a)                                           \
  Positions(o* STRIDE##a - WINDOW_PAD##a, WINDOW##a, DILATION##a, \
            INCLUDE_PAD ? -WINDOW_PAD##a : 0,                     \
            (Index)sizes.input[a] + (INCLUDE_PAD ? END_PAD##a : 0))

// The factor that turns the sum of a window into its mean.
__device__ inline C Share(Index o0, Index o1, Index o2, const Sizes& sizes) {
  if (ALL_WHOLE) return (C)1 / (C)((i64)WINDOW0 * WINDOW1 * WINDOW2);
  const i64 count = (i64)POSITIONS(o0, 0) * POSITIONS(o1, 1) * POSITIONS(o2, 2);
  return count == 0 ? (C)0 : (C)1 / (C)count;
}

struct WindowSum {
  const S* image;
  C sum;

  __device__ void operator()(Index place) { sum += Load(image + place); }
};

extern "C" __global__ void average_pool(const S* x, S* y, i64 n, Sizes sizes) {
  for (i64 at = blockIdx.x * (i64)blockDim.x + threadIdx.x; at < n;
       at += (i64)gridDim.x * blockDim.x) {
    const Place o(at, sizes.output);
    WindowSum all = {x + o.image * Elements(sizes.input), 0};
    WalkWindow(o, sizes, all);
    Store(y + at, all.sum * Share(o.a0, o.a1, o.a2, sizes));
  }
}

struct ShareSum {
  const S* dy;
  const Sizes& sizes;
  C sum;

  __device__ void operator()(Index output, Index o0, Index o1, Index o2) {
    sum += Load(dy + output) * Share(o0, o1, o2, sizes);
  }
};

extern "C" __global__ void average_pool_gradient(const S* dy, S* dx, i64 n, Sizes sizes) {
  for (i64 at = blockIdx.x * (i64)blockDim.x + threadIdx.x; at < n;
       at += (i64)gridDim.x * blockDim.x) {
    const Place i(at, sizes.input);
    ShareSum shares = {dy + i.image * Elements(sizes.output), sizes, 0};
    WalkHolders(i, sizes, shares);
    Store(dx + at, shares.sum);
  }
}
