// SPDX-License-Identifier: Apache-2.0
// The mean and variance of channels, in training.
#include "core/ops/normalization/channel_elements.cuh"

struct MeanOf {
  __device__ C operator()(C v) const { return v; }
};
struct SquareAbout {
  C mean;
  __device__ C operator()(C v) const { return (v - mean) * (v - mean); }
};

template <bool kWhole, typename Term>
__device__ inline C SumOf(const S* x, const Part& part, Index channels, Index positions,
                          Term term) {
  C sum = 0;
#pragma unroll 4
  for (Index j = part.own_first(); j < part.end; j += THREADS / LANES * WIDE) {
    const Index at = ElementAt(part.channel, j, channels, positions);
    const Vector<S, WIDE> v = LoadVector<WIDE, kWhole>(x + at);
#pragma unroll
    for (int e = 0; e < WIDE; ++e) sum += term(Load(v.at + e));
  }
  return sum;
}

// The means of parts, then their sums of squares about them.
template <bool kWhole>
__device__ inline void Moments(const S* x, C* sums, i64 channels, i64 positions, i64 n,
                               i64 part_count, i64 part_n) {
  const i64 items = (channels + LANES - 1) / LANES * part_count;
  for (i64 item = blockIdx.x; item < items; item += gridDim.x) {
    const Part part(item, channels, n, part_count, part_n);
    const bool has = part.channel < channels;
    const C sum = has ? SumOf<kWhole>(x, part, channels, positions, MeanOf()) : (C)0;
    const C mean = ChannelSum(sum) / (C)(part.end - part.first);
    const C own = has ? SumOf<kWhole>(x, part, channels, positions, SquareAbout{mean}) : (C)0;
    const C squares = ChannelSum(own);
    if (!has || threadIdx.x / LANES != 0) continue;
    sums[part.at] = mean;
    sums[channels * part_count + part.at] = squares;
  }
}

extern "C" __global__ void __launch_bounds__(THREADS)
    moments(const S* x, C* sums, i64 channels, i64 positions, i64 n, i64 part_count, i64 part_n,
            int aligned) {
  if (aligned) Moments<true>(x, sums, channels, positions, n, part_count, part_n);
  else Moments<false>(x, sums, channels, positions, n, part_count, part_n);
}

struct PartMean {
  const C* means;
  i64 n, part_n;
  __device__ i64 Count(i64 part) const {
    return (part + 1) * part_n < n ? part_n : n - part * part_n;
  }
  __device__ double operator()(i64 part) const { return (double)means[part] * Count(part); }
};
struct PartSquares {
  PartMean of;
  const C* squares;
  double mean;
  __device__ double operator()(i64 part) const {
    const double d = of.means[part] - mean;
    return squares[part] + d * d * of.Count(part);
  }
};

__device__ inline void StoreStatistic(R* to, i64 channel, double v) {
  if (to) Store(to + channel, (RC)v);
}

// `folded`: the mean, scale / deviation, and the bias of each channel.
extern "C" __global__ void finish_moments(const C* sums, const P* scale, const P* bias,
                                          const R* mean_before, const R* variance_before,
                                          R* running_mean, R* running_variance, R* saved_mean,
                                          R* saved_inv_std, C* folded, i64 channels, i64 n,
                                          i64 part_count, i64 part_n, double epsilon,
                                          double momentum, double correction) {
  for (i64 c = (blockIdx.x * (i64)blockDim.x + threadIdx.x) / 32; c < channels;
       c += (i64)gridDim.x * blockDim.x / 32) {
    const PartMean of = {sums + c * part_count, n, part_n};
    const double mean = SumParts(part_count, of) / n;
    const PartSquares about = {of, sums + (channels + c) * part_count, mean};
    const double variance = SumParts(part_count, about) / n;
    if (threadIdx.x % 32 != 0) continue;
    const double inv_std = 1 / sqrt(variance + epsilon);
    StoreStatistic(running_mean, c, Load(mean_before + c) * momentum + mean * (1 - momentum));
    StoreStatistic(running_variance, c,
                   Load(variance_before + c) * momentum + variance * correction * (1 - momentum));
    StoreStatistic(saved_mean, c, mean);
    StoreStatistic(saved_inv_std, c, inv_std);
    folded[c] = (C)mean;
    folded[channels + c] = (C)(Load(scale + c) * inv_std);
    folded[2 * channels + c] = (C)Load(bias + c);
  }
}
