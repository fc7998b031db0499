// SPDX-License-Identifier: Apache-2.0
// Softmax of the scores of attention, and its gradient. ROUNDS: the probabilities are also written
// as halves.
#include "core/kernels/cuda/row_reduce.cuh"

#ifndef C_TYPE
#define C_TYPE float
#define P_TYPE float
#define M_TYPE float
#define EXP expf
#define LOG logf
#define ROUNDS false
#define MASK false
#define MASK_IS_BOOL false
#define HIDDEN -INFINITE
#define BY_MASK false
#define ZERO false
#endif
typedef C_TYPE C;
typedef P_TYPE P;
typedef M_TYPE M;

struct Rows {
  i64 heads, queries, keys, mask_length, mask_strides[4];
  i64 left, right;
  int causal;
};

// A block a row of scores: bias, softmax in place, and the logarithm of its sum. Rows as
// AttentionSpec::AddBias and ScoreSoftmax (core/kernels/cpu/attention) have them: `blind` ones may
// look nowhere, and end as zeros.
extern "C" __global__ void probabilities(C* scores, const M* mask, P* rounded, C* lse, i64 rows,
                                         Rows s) {
  for (i64 r = blockIdx.x; r < rows; r += gridDim.x) {
    const i64 i = r % s.queries, head = r / s.queries % s.heads, b = r / s.queries / s.heads;
    i64 last = s.keys;
    if (s.causal && i + 1 < last) last = i + 1;
    if (s.right >= 0 && i + s.right + 1 < last) last = i + s.right + 1;
    if (MASK && s.mask_length < last) last = s.mask_length;
    i64 first = s.left >= 0 && i - s.left > 0 ? i - s.left : 0;
    if (last < 0) last = 0;
    if (first > last) first = last;
    C* row = scores + r * s.keys;
    const i64 at = b * s.mask_strides[0] + head * s.mask_strides[1] + i * s.mask_strides[2];
    C most = -INFINITE;
    int any = !MASK && first < last;
    for (i64 j = threadIdx.x; j < s.keys; j += blockDim.x) {
      C v = row[j];
      if (j < first || j >= last) v = -INFINITE;
      else if (MASK) {
        const auto m = Load(mask + at + j * s.mask_strides[3]);
        if (MASK_IS_BOOL) {
          if (!m) v = HIDDEN;
          any |= m != 0;
        } else {
          v = BY_MASK && (C)m == -INFINITE ? -INFINITE : v + (C)m;
          any |= (C)m != -INFINITE;
        }
      }
      row[j] = v;
      most = ExtremeMax(most, v);
    }
    most = RowReduce(most, RowMax());
    any = RowReduce(any, RowMax());
    C sum = 0;
    for (i64 j = threadIdx.x; j < s.keys; j += blockDim.x) sum += EXP(row[j] - most);
    sum = RowReduce(sum, RowSum());
    const bool blind = BY_MASK && !any;
    for (i64 j = threadIdx.x; j < s.keys; j += blockDim.x) {
      C p = EXP(row[j] - most) / sum;
      if (blind || (ZERO && p != p)) p = 0;
      row[j] = p;
      if (ROUNDS) Store(rounded + r * s.keys + j, p);
    }
    if (lse && threadIdx.x == 0) lse[r] = blind ? INFINITE : most + LOG(sum);
    __syncthreads();
  }
}

// ds = p * (dp - sum of dp * p), which may be in place of dp. Zeros in the place of NaN have no
// slope of their own: softmax's is NaN there.
extern "C" __global__ void score_slopes(const C* p, C* dp, P* ds, i64 rows, i64 keys) {
  for (i64 r = blockIdx.x; r < rows; r += gridDim.x) {
    C dot = 0;
    int any = 0;
    for (i64 j = threadIdx.x; j < keys; j += blockDim.x) {
      dot += dp[r * keys + j] * p[r * keys + j];
      any |= p[r * keys + j] != 0;
    }
    dot = RowReduce(dot, RowSum());
    any = RowReduce(any, RowMax());
    if (ZERO && !any) dot = INFINITE - INFINITE;
    for (i64 j = threadIdx.x; j < keys; j += blockDim.x)
      Store(ds + r * keys + j, p[r * keys + j] * (dp[r * keys + j] - dot));
  }
}
