// SPDX-License-Identifier: Apache-2.0
// Reductions. The elements v under an output meet as ELEMENT by OP, from FIRST on; RESULT is made
// of `all`, n is their number. COLUMNS: a thread has outputs of its own; else a team of threads
// one.
#include "core/kernels/cuda/row_reduce.cuh"

#ifndef S_TYPE
#define S_TYPE float
#define C_TYPE float
#define D_TYPE float
#define O_TYPE float
#define OP RowSum
#define FIRST 0
#define ELEMENT v
#define RESULT all
#define COLUMNS 0
#define WIDE 1
#define TEAM 32
#define SHARERS 1
#define KEPT_NUMBERS 2
#define UNDER_NUMBERS 2
#define KEPT_OFFSETS i64 at0 = i * n
#define UNDER_OFFSETS i64 off0 = j
#endif
typedef S_TYPE S;
typedef C_TYPE C;
typedef D_TYPE D;
typedef O_TYPE O;
struct Kept {
  i64 at[KEPT_NUMBERS];
};
struct Under {
  i64 at[UNDER_NUMBERS];
};

struct alignas(WIDE * sizeof(S)) Piece {
  S at[WIDE];
};
struct alignas(WIDE * sizeof(D) > 16 ? 16 : WIDE * sizeof(D)) Results {
  D at[WIDE];
};

// The same elements, by one load or by several.
template <bool aligned>
__device__ inline Piece LoadPiece(const S* x) {
  Piece out;
  if (aligned) {
    out = *(const Piece*)x;
  } else {
#pragma unroll
    for (int e = 0; e < WIDE; ++e) out.at[e] = x[e];
  }
  return out;
}

__device__ inline C Merged(C part, C v) { return OP()(part, (C)(ELEMENT)); }
__device__ inline O Result(C all, i64 n) { return (O)(RESULT); }

// Merges the values of a team; the first of its threads has the result.
__device__ inline C TeamReduce(C v) {
#if TEAM > 32
  return RowReduce(v, OP());
#else
  for (int m = TEAM / 2; m > 0; m >>= 1) v = OP()(v, __shfl_xor_sync(0xffffffffu, v, m));
  return v;
#endif
}

// A team an output and part, WIDE elements under it a thread.
template <bool aligned>
__device__ inline void ReduceRows(const S* x, D* y, C* parts, i64 outputs, i64 n, i64 part_count,
                                  i64 part_n, const Kept& kept, const Under& under) {
  const int lane = threadIdx.x % TEAM;
  const i64 step = (i64)gridDim.x * (blockDim.x / TEAM);
  for (i64 item = blockIdx.x * (i64)(blockDim.x / TEAM) + threadIdx.x / TEAM;
       item < outputs * part_count; item += step) {
    const i64 i = part_count == 1 ? item : item / part_count, part = item - i * part_count;
    KEPT_OFFSETS;
    const S* from = x + at0;
    const i64 end = (part + 1) * part_n < n ? (part + 1) * part_n : n;
    C all = FIRST;
#pragma unroll 4
    for (i64 j = part * part_n + lane * WIDE; j < end; j += TEAM * WIDE) {
      UNDER_OFFSETS;
      const Piece v = LoadPiece<aligned>(from + off0);
#pragma unroll
      for (int e = 0; e < WIDE; ++e) all = Merged(all, Load(v.at + e));
    }
    all = TeamReduce(all);
    if (lane != 0) continue;
    if (part_count == 1) Store(y + i, Result(all, n));
    else parts[item] = all;
  }
}

// A thread WIDE outputs, and every SHARERS'th of the elements under them.
template <bool aligned>
__device__ inline void ReduceColumns(const S* x, D* y, C* parts, i64 outputs, i64 n, i64 part_count,
                                     i64 part_n, const Kept& kept, const Under& under,
                                     C (*of_sharer)[WIDE]) {
  const int lanes = blockDim.x / SHARERS, lane = threadIdx.x % lanes, sharer = threadIdx.x / lanes;
  const i64 tiles = (outputs / WIDE + lanes - 1) / lanes;
  for (i64 item = blockIdx.x; item < tiles * part_count; item += gridDim.x) {
    const i64 part = part_count == 1 ? 0 : item / tiles;
    const i64 i = ((item - part * tiles) * lanes + lane) * WIDE;
    C all[WIDE];
#pragma unroll
    for (int e = 0; e < WIDE; ++e) all[e] = FIRST;
    if (i < outputs) {
      KEPT_OFFSETS;
      const S* from = x + at0;
      const i64 end = (part + 1) * part_n < n ? (part + 1) * part_n : n;
#pragma unroll 8
      for (i64 j = part * part_n + sharer; j < end; j += SHARERS) {
        UNDER_OFFSETS;
        const Piece v = LoadPiece<aligned>(from + off0);
#pragma unroll
        for (int e = 0; e < WIDE; ++e) all[e] = Merged(all[e], Load(v.at + e));
      }
    }
    if (SHARERS > 1) {
#pragma unroll
      for (int e = 0; e < WIDE; ++e) of_sharer[threadIdx.x][e] = all[e];
      __syncthreads();
      for (int k = 1; k < SHARERS && sharer == 0; ++k) {
#pragma unroll
        for (int e = 0; e < WIDE; ++e) all[e] = OP()(all[e], of_sharer[k * lanes + lane][e]);
      }
      __syncthreads();
    }
    if (sharer != 0 || i >= outputs) continue;
    Results results;
#pragma unroll
    for (int e = 0; e < WIDE; ++e) {
      if (part_count > 1) parts[part * outputs + i + e] = all[e];
      else if (aligned) Store(results.at + e, Result(all[e], n));
      else Store(y + i + e, Result(all[e], n));
    }
    if (part_count == 1 && aligned) *(Results*)(y + i) = results;
  }
}

extern "C" __global__ void reduce(const S* x, D* y, C* parts, i64 outputs, i64 n, i64 part_count,
                                  i64 part_n, int aligned, Kept kept, Under under) {
#if COLUMNS
  __shared__ C of_sharer[SHARERS > 1 ? 256 : 1][WIDE];
  if (aligned)
    ReduceColumns<true>(x, y, parts, outputs, n, part_count, part_n, kept, under, of_sharer);
  else ReduceColumns<false>(x, y, parts, outputs, n, part_count, part_n, kept, under, of_sharer);
#else
  if (aligned) ReduceRows<true>(x, y, parts, outputs, n, part_count, part_n, kept, under);
  else ReduceRows<false>(x, y, parts, outputs, n, part_count, part_n, kept, under);
#endif
}

// Parts of columns: a thread an output. Parts of rows: a warp.
extern "C" __global__ void merge_parts(const C* parts, D* y, i64 outputs, i64 n, i64 part_count) {
  const int warp = COLUMNS ? 1 : 32, lane = threadIdx.x % warp;
  for (i64 i = (blockIdx.x * (i64)blockDim.x + threadIdx.x) / warp; i < outputs;
       i += (i64)gridDim.x * blockDim.x / warp) {
    C all = FIRST;
#pragma unroll 8
    for (i64 part = lane; part < part_count; part += warp)
      all = OP()(all, parts[COLUMNS ? part * outputs + i : i * part_count + part]);
#if !COLUMNS
    for (int m = 16; m > 0; m >>= 1) all = OP()(all, __shfl_xor_sync(0xffffffffu, all, m));
#endif
    if (lane == 0) Store(y + i, Result(all, n));
  }
}
