// SPDX-License-Identifier: Apache-2.0
// Gradients of a batch norm in training.
#include "core/ops/normalization/channel_elements.cuh"

// Sums of parts: of dY, then of dY * (X - mean).
template <bool kWhole>
__device__ inline void GradientSums(const S* dy, const S* x, const R* means, C* sums, i64 channels,
                                    i64 positions, i64 n, i64 part_count, i64 part_n) {
  const i64 items = (channels + LANES - 1) / LANES * part_count;
  for (i64 item = blockIdx.x; item < items; item += gridDim.x) {
    const Part part(item, channels, n, part_count, part_n);
    const bool has = part.channel < channels;
    C sum = 0, product = 0;
    if (has) {
      const C mean = (C)Load(means + part.channel);
#pragma unroll 4
      for (Index j = part.own_first(); j < part.end; j += THREADS / LANES * WIDE) {
        const Index at = ElementAt(part.channel, j, channels, positions);
        const Vector<S, WIDE> d = LoadVector<WIDE, kWhole>(dy + at),
                              v = LoadVector<WIDE, kWhole>(x + at);
#pragma unroll
        for (int e = 0; e < WIDE; ++e) {
          sum += Load(d.at + e);
          product += Load(d.at + e) * (Load(v.at + e) - mean);
        }
      }
    }
    sum = ChannelSum(sum);
    product = ChannelSum(product);
    if (!has || threadIdx.x / LANES != 0) continue;
    sums[part.at] = sum;
    sums[channels * part_count + part.at] = product;
  }
}

extern "C" __global__ void __launch_bounds__(THREADS)
    gradient_sums(const S* dy, const S* x, const R* means, C* sums, i64 channels, i64 positions,
                  i64 n, i64 part_count, i64 part_n, int aligned) {
  if (aligned) GradientSums<true>(dy, x, means, sums, channels, positions, n, part_count, part_n);
  else GradientSums<false>(dy, x, means, sums, channels, positions, n, part_count, part_n);
}

struct PartSum {
  const C* sums;
  __device__ double operator()(i64 part) const { return sums[part]; }
};

// dX = a * dY + b * (X - mean) + c.
struct Map {
  C a, b, mean, c;
};

extern "C" __global__ void finish_gradient(const C* sums, const P* scale, const R* means,
                                           const R* inv_stds, P* d_scale, P* d_bias, Map* maps,
                                           i64 channels, i64 n, i64 part_count) {
  for (i64 c = (blockIdx.x * (i64)blockDim.x + threadIdx.x) / 32; c < channels;
       c += (i64)gridDim.x * blockDim.x / 32) {
    const double sum = SumParts(part_count, PartSum{sums + c * part_count});
    const double product = SumParts(part_count, PartSum{sums + (channels + c) * part_count});
    if (threadIdx.x % 32 != 0) continue;
    const double inv_std = Load(inv_stds + c), by_scale = product * inv_std;
    const double a = Load(scale + c) * inv_std;
    maps[c] = {(C)a, (C)(-a * inv_std * by_scale / n), (C)Load(means + c), (C)(-a * sum / n)};
    if (d_scale) Store(d_scale + c, (PC)by_scale);
    if (d_bias) Store(d_bias + c, (PC)sum);
  }
}

template <bool kWhole>
__device__ inline void Gradient(const S* dy, const S* x, const Map* maps, S* dx, i64 elements,
                                Index channels, Index positions) {
  for (i64 i = (blockIdx.x * (i64)blockDim.x + threadIdx.x) * MAPPED; i < elements;
       i += (i64)gridDim.x * blockDim.x * MAPPED) {
    const Index channel = ChannelOf((Index)i, channels, positions);
    const Vector<S, MAPPED> d = LoadVector<MAPPED, kWhole>(dy + i),
                            v = LoadVector<MAPPED, kWhole>(x + i);
    Vector<S, MAPPED> to;
    Map map = maps[channel];
#pragma unroll
    for (int e = 0; e < MAPPED; ++e) {
      if (SIDE_BY_SIDE && e > 0) map = maps[channel + e];
      Store(to.at + e, map.a * Load(d.at + e) + map.b * (Load(v.at + e) - map.mean) + map.c);
    }
    StoreVector<kWhole>(dx + i, to);
  }
}

extern "C" __global__ void gradient(const S* dy, const S* x, const Map* maps, S* dx, i64 elements,
                                    i64 channels, i64 positions, int aligned) {
  if (aligned) Gradient<true>(dy, x, maps, dx, elements, channels, positions);
  else Gradient<false>(dy, x, maps, dx, elements, channels, positions);
}
