// SPDX-License-Identifier: Apache-2.0
// GatherGrad. Rows are in classes by their last bits, and a warp sorts the indices of one class: it
// walks all of them twice, to count each row's and to place them. A warp's rows are no other
// warp's, so that no result depends on which warp is first. Then threads add the slices of one row
// in that order.
#include "core/kernels/cuda/prelude.cuh"

#ifndef S_TYPE
#define S_TYPE float
#define C_TYPE float
#define I_TYPE i64
#define R_TYPE int
#define SORT_WARPS 8
#define NEAR_BYTES 1024
#endif
typedef S_TYPE S;
typedef C_TYPE C;
typedef I_TYPE I;
typedef R_TYPE R;

struct alignas(2 * sizeof(R)) Place {
  R row, j;
};
#define CHUNK ((int)(32768 / sizeof(R)))      // indices in shared memory
#define NEAR ((int)(NEAR_BYTES / sizeof(R)))  // rows of a class whose numbers are there, too

extern "C" __global__ void sort_indices(const I* indices, Place* sorted, R* numbers, i64 count,
                                        i64 dim, int class_bits, unsigned* error, unsigned number) {
  __shared__ R rows[CHUNK];
  __shared__ R near_numbers[SORT_WARPS * NEAR];
  const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
  const R own = blockIdx.x * (blockDim.x / 32) + warp, last_bits = ((R)1 << class_bits) - 1;
  const i64 own_rows = (dim + last_bits) >> class_bits;
  // Counters, one a row of the class: its indices; then, the place of its next one.
  R* next = own_rows <= NEAR ? near_numbers + warp * NEAR : numbers + own * own_rows;
  for (i64 s = lane; s < own_rows; s += 32) next[s] = 0;
  __syncwarp();
  R before = 0;  // indices of the classes before
  bool wrong = false;
  for (int pass = 0; pass < 2; ++pass) {
    for (i64 first = 0; first < count; first += CHUNK) {
      const int n = count - first < CHUNK ? (int)(count - first) : CHUNK;
      if (pass == 0 || count > CHUNK) {
        __syncthreads();  // the chunk before may still be read
#pragma unroll 8
        for (int k = threadIdx.x; k < n; k += blockDim.x) {
          i64 index = Load(indices + first + k);
          if (index < 0) index += dim;
          const bool outside = index < 0 || index >= dim;
          wrong |= outside;
          rows[k] = outside ? 0 : (R)index;
        }
        __syncthreads();
      }
#pragma unroll 4
      for (int at = 0; at < n; at += 32) {
        const R row = at + lane < n ? rows[at + lane] : -1, of = row & last_bits;
        const bool mine = (row >= 0) & (of == own);
        before += (pass == 0) & (row >= 0) & (of < own);
        const unsigned all = __ballot_sync(0xffffffffu, mine);
        if (all == 0) continue;
        const unsigned equal = __match_any_sync(0xffffffffu, mine ? row : (R)-1);
        const int to_left = __popc(equal & ((1u << lane) - 1));
        const R to = mine ? next[row >> class_bits] : 0;
        __syncwarp();
        if (mine && to_left == 0) next[row >> class_bits] = to + __popc(equal);
        if (mine && pass == 1) sorted[to + to_left] = Place{row, (R)(first + at + lane)};
        __syncwarp();
      }
    }
    if (pass == 1) break;
    for (int m = 16; m > 0; m >>= 1) before += __shfl_xor_sync(0xffffffffu, before, m);
    for (i64 s = 0; s < own_rows; s += 32) {
      const R many = s + lane < own_rows ? next[s + lane] : 0;
      R sum = many;
      for (int m = 1; m < 32; m <<= 1) {
        const R left = __shfl_up_sync(0xffffffffu, sum, m);
        if (lane >= m) sum += left;
      }
      if (s + lane < own_rows) next[s + lane] = before + sum - many;
      before += __shfl_sync(0xffffffffu, sum, 31);
    }
    __syncwarp();
  }
  if (wrong) atomicCAS(error, 0u, number);
}

// `pieces` of 16 bytes, then what is left of n elements.
extern "C" __global__ void zero(S* dx, i64 pieces, i64 n) {
  const i64 from = blockIdx.x * (i64)blockDim.x + threadIdx.x, step = (i64)gridDim.x * blockDim.x;
  for (i64 i = from; i < pieces; i += step) ((uint4*)dx)[i] = make_uint4(0, 0, 0, 0);
  for (i64 i = pieces * (16 / sizeof(S)) + from; i < n; i += step) Store(dx + i, (C)0);
}

// A block takes the first of a row's places, and with it all of them, in a tile of the columns;
// a thread V columns. Several slices are on their way before the first is added.
template <int V>
__device__ inline void AddSlices(const S* dy, const Place* sorted, S* dx, i64 count, i64 dim,
                                 i64 inner, i64 columns, i64 tiles) {
  struct alignas(V * sizeof(S)) Piece {
    S at[V];
  };
  constexpr int kBatch = 8;
  for (i64 i = blockIdx.x; i < count * tiles; i += gridDim.x) {
    const i64 p = tiles == 1 ? i : i / tiles;
    const i64 column = ((i - p * tiles) * blockDim.x + threadIdx.x) * V;
    const Place own = sorted[p];
    const R row = own.row;
    if (column >= columns || (p > 0 && sorted[p - 1].row == row)) continue;
    const i64 o = columns == inner ? 0 : column / inner, within = column - o * inner;
    const S* from = dy + o * count * inner + within;
    Piece* to = (Piece*)(dx + (o * dim + row) * inner + within);
    Piece sum = *to;
    C sums[V];
#pragma unroll
    for (int e = 0; e < V; ++e) sums[e] = Load(sum.at + e);
    bool more = true;
    for (i64 q = p; more; q += kBatch) {
      // No load depends on a branch: what is not of the row is loaded, and left out.
      Piece x[kBatch];
      Place places[kBatch];
      bool is_row[kBatch];
#pragma unroll
      for (int k = 0; k < kBatch; ++k) places[k] = sorted[q + k < count ? q + k : p];
#pragma unroll
      for (int k = 0; k < kBatch; ++k) {
        is_row[k] = (q + k < count) & (places[k].row == row);
        x[k] = *(const Piece*)(from + (is_row[k] ? places[k].j : own.j) * inner);
      }
#pragma unroll
      for (int k = 0; k < kBatch; ++k) {
        if (!is_row[k]) continue;
#pragma unroll
        for (int e = 0; e < V; ++e) sums[e] += Load(x[k].at + e);
      }
      more = is_row[kBatch - 1];
    }
#pragma unroll
    for (int e = 0; e < V; ++e) Store(sum.at + e, sums[e]);
    *to = sum;
  }
}

extern "C" __global__ void add_slices(const S* dy, const Place* sorted, S* dx, i64 count, i64 dim,
                                      i64 inner, i64 columns, i64 tiles) {
  AddSlices<1>(dy, sorted, dx, count, dim, inner, columns, tiles);
}

extern "C" __global__ void add_slices_wide(const S* dy, const Place* sorted, S* dx, i64 count,
                                           i64 dim, i64 inner, i64 columns, i64 tiles) {
  AddSlices<16 / sizeof(S)>(dy, sorted, dx, count, dim, inner, columns, tiles);
}
