// SPDX-License-Identifier: Apache-2.0
// y = (x - mean) * scale + shift: the mean goes first, where little is lost of it.
#include "core/ops/normalization/channel_elements.cuh"

struct Affine {
  C mean, scale, shift;
};

struct Folded {
  const C* at;
  i64 channels;
  __device__ Affine operator()(Index c) const {
    return {at[c], at[channels + c], at[2 * channels + c]};
  }
};

struct ByRunning {
  const P *scale, *bias;
  const R *mean, *variance;
  double epsilon;
  __device__ Affine operator()(Index c) const {
    const C deviation = SQRT((C)Load(variance + c) + (C)epsilon);
    return {(C)Load(mean + c), (C)Load(scale + c) / deviation, (C)Load(bias + c)};
  }
};

template <bool kWhole, typename Of>
__device__ inline void Normalize(const S* x, S* y, i64 elements, Index channels, Index positions,
                                 const Of& affine_of) {
  for (i64 i = (blockIdx.x * (i64)blockDim.x + threadIdx.x) * MAPPED; i < elements;
       i += (i64)gridDim.x * blockDim.x * MAPPED) {
    const Index channel = ChannelOf((Index)i, channels, positions);
    const Vector<S, MAPPED> from = LoadVector<MAPPED, kWhole>(x + i);
    Vector<S, MAPPED> to;
    Affine affine = affine_of(channel);
#pragma unroll
    for (int e = 0; e < MAPPED; ++e) {
      if (SIDE_BY_SIDE && e > 0) affine = affine_of(channel + e);
      Store(to.at + e, (Load(from.at + e) - affine.mean) * affine.scale + affine.shift);
    }
    StoreVector<kWhole>(y + i, to);
  }
}

extern "C" __global__ void normalize(const S* x, S* y, i64 elements, i64 channels, i64 positions,
                                     const C* folded, int aligned) {
  const Folded affine = {folded, channels};
  if (aligned) Normalize<true>(x, y, elements, channels, positions, affine);
  else Normalize<false>(x, y, elements, channels, positions, affine);
}

extern "C" __global__ void normalize_by_running(const S* x, S* y, i64 elements, i64 channels,
                                                i64 positions, const P* scale, const P* bias,
                                                const R* mean, const R* variance, double epsilon,
                                                int aligned) {
  const ByRunning affine = {scale, bias, mean, variance, epsilon};
  if (aligned) Normalize<true>(x, y, elements, channels, positions, affine);
  else Normalize<false>(x, y, elements, channels, positions, affine);
}
