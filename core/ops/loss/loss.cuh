// SPDX-License-Identifier: Apache-2.0
// Per sample: its loss and its weight; `lse` of a softmax: the logarithm of the sum of
// exponentials, for which each row is read once. Where `log_prob` is wanted, rows are read again,
// backwards: what was read last is in the cache most surely.
#include "core/ops/loss/loss_row.cuh"

// The largest score so far, and the sum of exp(score - most).
struct Exponentials {
  C most, sum;

  __device__ void Add(const Columns& x) {
    C next = most;
#pragma unroll
    for (int k = 0; k < AT_ONCE; ++k) next = ExtremeMax(next, x.v[k]);
    // There is nothing to sum yet where all are -infinity.
    const C shift = next == -INFINITE ? (C)0 : next;
    sum *= EXP(most - shift);
#pragma unroll
    for (int k = 0; k < AT_ONCE; ++k) sum += EXP(x.v[k] - shift);
    most = next;
  }
};

extern "C" __global__ void __launch_bounds__(THREADS)
    sample_losses(const S* x, const L* labels, const S* weights, S* log_prob, C* lse, S* losses,
                  double* loss_parts, double* weight_parts, i64 samples, i64 classes, Walk walk,
                  i64 x_stride, i64 y_stride, int has_ignore, i64 ignore, unsigned* error,
                  unsigned number) {
  for (i64 i = blockIdx.x; i < samples; i += gridDim.x) {
    SAMPLE;
    const S* row = x + offset0;
    const C score = Load(row + (Index)label * X_STRIDE);
    C shift = 0;
    if (SOFTMAX) {
      Exponentials own = {-INFINITE, 0};
      Index c = threadIdx.x;
      for (; c < columns; c += AT_ONCE * THREADS) {
        Columns some;
        some.Read(row, c, columns, X_STRIDE);
        own.Add(some);
      }
      const C most = RowReduce(own.most, RowMax());
      shift = most + LOG(RowReduce(own.sum * EXP(own.most - most), RowSum()));
      // `log_prob` may lie where x does: all threads have read the score.
      __syncthreads();
      S* to = log_prob + offset1;
      while (log_prob && c > (Index)threadIdx.x) {
        c -= AT_ONCE * THREADS;
        Columns some;
        some.Read(row, c, columns, X_STRIDE);
#pragma unroll
        for (int k = 0; k < AT_ONCE; ++k) some.v[k] -= shift;
        some.Write(to, c, columns, Y_STRIDE);
      }
    }
    if (threadIdx.x == 0) {
      const C loss = ignored ? (C)0 : -(score - shift) * weight;
      if (lse) lse[i] = shift;
      if (losses) Store(losses + i, loss);
      loss_parts[i] = loss;
      weight_parts[i] = weight;
    }
  }
}

extern "C" __global__ void __launch_bounds__(1024)
    finish_loss(const double* loss_parts, const double* weight_parts, S* loss, i64 samples,
                int mean) {
  double sum = 0, weight = 0;
#pragma unroll 4
  for (i64 i = threadIdx.x; i < samples; i += blockDim.x) {
    sum += loss_parts[i];
    weight += weight_parts[i];
  }
  sum = RowReduce(sum, RowSum());
  weight = RowReduce(weight, RowSum());
  if (threadIdx.x == 0) Store(loss, (C)(mean ? sum / weight : sum));
}
