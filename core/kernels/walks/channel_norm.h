// SPDX-License-Identifier: Apache-2.0
// Tensors as [N, C, positions] with statistics and affine maps a channel: what the batch, instance
// and group normalisations and their gradients share.
#ifndef CAESURA_CORE_KERNELS_WALKS_CHANNEL_NORM_H_
#define CAESURA_CORE_KERNELS_WALKS_CHANNEL_NORM_H_

#include "core/kernels/simd/best_isa.h"
#include "core/kernels/simd/parallel.h"
#include "core/kernels/simd/row_math.h"
#include "core/kernels/walks/batch_norm_spec.h"

namespace caesura {

// A sum over all elements of a channel: `row(offset, n)` gives that of a contiguous run; runs are
// added in float64.
template <typename Row>
inline double ChannelSum(const ChannelView& v, int64_t channel, Row row) {
  double sum = 0;
  if (v.positions == 0) return sum;
  for (int64_t b = 0; b < v.batch; ++b)
    sum += row((b * v.channels + channel) * v.positions, v.positions);
  return sum;
}

// Mean and population variance of each channel, as float64.
template <typename T>
void ChannelMoments(int threads, const ChannelView& v, const T* x, double* mean, double* variance) {
  using Acc = Accumulator<T>;
  const double count = static_cast<double>(v.per_channel());
  ParallelFor(threads, v.channels, 1 + kParallelGrain / (2 * v.per_channel() + 1),
              [=](int64_t first, int64_t last) {
                if (v.positions == 1) {  // channels lie side by side: add whole lines
                  for (int64_t c = first; c < last; ++c) mean[c] = variance[c] = 0;
                  for (int64_t b = 0; b < v.batch; ++b) {
                    for (int64_t c = first; c < last; ++c)
                      mean[c] += static_cast<Acc>(x[b * v.channels + c]);
                  }
                  for (int64_t c = first; c < last; ++c) mean[c] /= count;
                  for (int64_t b = 0; b < v.batch; ++b) {
                    for (int64_t c = first; c < last; ++c) {
                      const double d = static_cast<Acc>(x[b * v.channels + c]) - mean[c];
                      variance[c] += d * d;
                    }
                  }
                  for (int64_t c = first; c < last; ++c) variance[c] /= count;
                  return;
                }
                OnBestIsa([=] {
                  for (int64_t c = first; c < last; ++c) {
                    mean[c] =
                        ChannelSum(v, c, [x](int64_t at, int64_t n) { return RowSum(x + at, n); }) /
                        count;
                    const Acc shift = static_cast<Acc>(mean[c]);
                    variance[c] = ChannelSum(v, c,
                                             [x, shift](int64_t at, int64_t n) {
                                               return RowSquares(x + at, n, shift);
                                             }) /
                                  count;
                  }
                });
              });
}

// sums[c] = sum of x over batch and positions, both of dtype `dtype`.
inline void ChannelSums(DType dtype, int threads, const ChannelView& v, const void* x, void* sums) {
  DispatchFloat(dtype, [&](auto tag) {
    using T = typename decltype(tag)::type;
    const T* from = static_cast<const T*>(x);
    T* to = static_cast<T*>(sums);
    ParallelFor(threads, v.channels, 1 + kParallelGrain / (v.per_channel() + 1),
                [=](int64_t first, int64_t last) {
                  for (int64_t c = first; c < last; ++c) {
                    const double sum = ChannelSum(
                        v, c, [from](int64_t at, int64_t n) { return RowSum(from + at, n); });
                    to[c] = T(static_cast<Accumulator<T>>(sum));
                  }
                });
  });
}

// y = (x - mean[c]) * scale[c] + shift[c]: the mean goes first, where little is lost of it. In
// place is fine.
template <typename T>
void ScaleChannels(int threads, const ChannelView& v, const T* x, const Accumulator<T>* mean,
                   const Accumulator<T>* scale, const Accumulator<T>* shift, T* y) {
  using Acc = Accumulator<T>;
  if (v.elements() == 0) return;
  if (v.positions == 1) {
    ParallelFor(threads, v.batch, 1 + kParallelGrain / (v.channels + 1),
                [=](int64_t first, int64_t last) {
                  for (int64_t b = first; b < last; ++b) {
                    const T* from = x + b * v.channels;
                    T* to = y + b * v.channels;
                    for (int64_t c = 0; c < v.channels; ++c)
                      to[c] = T((Acc(from[c]) - mean[c]) * scale[c] + shift[c]);
                  }
                });
    return;
  }
  ParallelFor(threads, v.batch * v.channels, 1 + kParallelGrain / (v.positions + 1),
              [=](int64_t first, int64_t last) {
                OnBestIsa([=] {
                  for (int64_t row = first; row < last; ++row) {
                    const T* from = x + row * v.positions;
                    T* to = y + row * v.positions;
                    const Acc m = mean[row % v.channels], s = scale[row % v.channels],
                              t = shift[row % v.channels];
#pragma omp simd
                    for (int64_t i = 0; i < v.positions; ++i) to[i] = T((Acc(from[i]) - m) * s + t);
                  }
                });
              });
}

}  // namespace caesura

#endif  // CAESURA_CORE_KERNELS_WALKS_CHANNEL_NORM_H_
