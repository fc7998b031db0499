// SPDX-License-Identifier: Apache-2.0
// Gradients of the scores.
#include "core/ops/loss/loss_row.cuh"

extern "C" __global__ void __launch_bounds__(1024)
    total_weight(const L* labels, const S* weights, double* total, i64 samples, i64 classes,
                 int has_ignore, i64 ignore) {
  double sum = 0;
#pragma unroll 4
  for (i64 i = threadIdx.x; i < samples; i += blockDim.x) {
    const i64 label = labels[i];
    const bool counts = !(has_ignore && label == ignore) && label >= 0 && label < classes;
    if (counts) sum += weights ? (double)Load(weights + label) : 1.0;
  }
  sum = RowReduce(sum, RowSum());
  if (threadIdx.x == 0) *total = sum;
}

extern "C" __global__ void __launch_bounds__(THREADS)
    score_gradients(const S* d_loss, const S* x, const L* labels, const S* weights, const C* lse,
                    const double* total, Y* dx, i64 samples, i64 classes, Walk walk, i64 x_stride,
                    i64 y_stride, int has_ignore, i64 ignore, int mean, int one_loss,
                    unsigned* error, unsigned number) {
  for (i64 i = blockIdx.x; i < samples; i += gridDim.x) {
    SAMPLE;
    const C g = Load(d_loss + (one_loss ? 0 : i)) / (mean ? (C)*total : (C)1) * weight;
    const C shift = SOFTMAX ? lse[i] : (C)0;
    const S* row = x + offset0;
    Y* to = dx + offset1;
    for (Index c = threadIdx.x; c < columns; c += AT_ONCE * THREADS) {
      Columns own = {};
      if (SOFTMAX) own.Read(row, c, columns, X_STRIDE);
#pragma unroll
      for (int k = 0; k < AT_ONCE; ++k) {
        C v = SOFTMAX ? EXP(own.v[k] - shift) * g : (C)0;
        if (c + k * THREADS == (Index)label) v -= g;
        own.v[k] = ignored ? (C)0 : v;
      }
      own.Write(to, c, columns, Y_STRIDE);
    }
  }
}
