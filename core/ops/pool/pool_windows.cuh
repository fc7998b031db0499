// SPDX-License-Identifier: Apache-2.0
// Windows over [images, 3 sizes]. KERNEL, STRIDE, DILATION and PAD are those without what meets
// padding only.
#ifndef CAESURA_CORE_KERNELS_CUDA_CONV_POOL_WINDOWS_CUH_
#define CAESURA_CORE_KERNELS_CUDA_CONV_POOL_WINDOWS_CUH_

#include "core/kernels/cuda/prelude.cuh"

#ifndef S_TYPE
#define S_TYPE float
#define C_TYPE float
#define INDEX_TYPE int
#define KERNEL0 1
#define KERNEL1 1
#define KERNEL2 1
#define STRIDE0 1
#define STRIDE1 1
#define STRIDE2 1
#define DILATION0 1
#define DILATION1 1
#define DILATION2 1
#define PAD0 0
#define PAD1 0
#define PAD2 0
#endif
typedef S_TYPE S;
typedef C_TYPE C;
typedef INDEX_TYPE Index;

struct Sizes {
  i64 input[3], output[3];
};

// Element `at` of [images, sizes...].
struct Place {
  Index image, a0, a1, a2;

  __device__ Place(i64 at, const i64* sizes) {
    Index rest = (Index)at;
    a2 = rest % (Index)sizes[2];
    rest /= (Index)sizes[2];
    a1 = rest % (Index)sizes[1];
    rest /= (Index)sizes[1];
    a0 = rest % (Index)sizes[0];
    image = rest / (Index)sizes[0];
  }
};

__device__ inline Index PlaceOf(Index a0, Index a1, Index a2, const i64* sizes) {
  return (a0 * (Index)sizes[1] + a1) * (Index)sizes[2] + a2;
}
__device__ inline Index Elements(const i64* sizes) {
  return (Index)sizes[0] * (Index)sizes[1] * (Index)sizes[2];
}

// Calls visit(place in the image) for the elements of a window, in order.
template <typename Visit>
__device__ inline void WalkWindow(const Place& o, const Sizes& sizes, Visit& visit) {
  const Index b0 = o.a0 * STRIDE0 - PAD0, b1 = o.a1 * STRIDE1 - PAD1, b2 = o.a2 * STRIDE2 - PAD2;
  for (Index k0 = 0; k0 < KERNEL0; ++k0) {
    const Index i0 = b0 + k0 * DILATION0;
    if (i0 < 0 || i0 >= sizes.input[0]) continue;
    for (Index k1 = 0; k1 < KERNEL1; ++k1) {
      const Index i1 = b1 + k1 * DILATION1;
      if (i1 < 0 || i1 >= sizes.input[1]) continue;
      for (Index k2 = 0; k2 < KERNEL2; ++k2) {
        const Index i2 = b2 + k2 * DILATION2;
        if (i2 >= 0 && i2 < sizes.input[2]) visit(PlaceOf(i0, i1, i2, sizes.input));
      }
    }
  }
}

// The windows along an axis, from First to before End, that reach over input position `i`.
__device__ inline Index First(Index i, Index pad, Index reach, Index stride) {
  const Index from = i + pad - reach;
  return from <= 0 ? 0 : (from + stride - 1) / stride;
}
__device__ inline Index End(Index i, Index pad, Index stride, i64 outputs) {
  const Index last = i + pad < 0 ? -1 : (i + pad) / stride;
  return last < (Index)outputs ? last + 1 : (Index)outputs;
}

// Calls visit(output, o0, o1, o2) for the windows that hold an element of the input, in order.
template <typename Visit>
__device__ inline void WalkHolders(const Place& i, const Sizes& sizes, Visit& visit) {
  const Index end0 = End(i.a0, PAD0, STRIDE0, sizes.output[0]),
              end1 = End(i.a1, PAD1, STRIDE1, sizes.output[1]),
              end2 = End(i.a2, PAD2, STRIDE2, sizes.output[2]);
  for (Index o0 = First(i.a0, PAD0, (KERNEL0 - 1) * DILATION0, STRIDE0); o0 < end0; ++o0) {
    if ((i.a0 + PAD0 - o0 * STRIDE0) % DILATION0 != 0) continue;
    for (Index o1 = First(i.a1, PAD1, (KERNEL1 - 1) * DILATION1, STRIDE1); o1 < end1; ++o1) {
      if ((i.a1 + PAD1 - o1 * STRIDE1) % DILATION1 != 0) continue;
      for (Index o2 = First(i.a2, PAD2, (KERNEL2 - 1) * DILATION2, STRIDE2); o2 < end2; ++o2) {
        if ((i.a2 + PAD2 - o2 * STRIDE2) % DILATION2 != 0) continue;
        visit(PlaceOf(o0, o1, o2, sizes.output), o0, o1, o2);
      }
    }
  }
}

#endif  // CAESURA_CORE_KERNELS_CUDA_CONV_POOL_WINDOWS_CUH_
