// SPDX-License-Identifier: Apache-2.0
// The elements of channels in x [batch, channels, positions], where element j of a channel counts
// through batch and positions. S, P, R: the types of elements, parameters and statistics; C, PC,
// RC: those that they are computed in. LANES: channels of a block; WIDE, MAPPED: elements of one
// load of a channel, and of any channels; SIDE_BY_SIDE: neighbours in memory are of neighbouring
// channels.
#ifndef CAESURA_CORE_KERNELS_CUDA_NORMALIZATION_CHANNEL_ELEMENTS_CUH_
#define CAESURA_CORE_KERNELS_CUDA_NORMALIZATION_CHANNEL_ELEMENTS_CUH_

#include "core/kernels/cuda/row_reduce.cuh"

#ifndef S_TYPE
#define S_TYPE float
#define C_TYPE float
#define P_TYPE float
#define PC_TYPE float
#define R_TYPE float
#define RC_TYPE float
#define INDEX_TYPE unsigned
#define LANES 1
#define THREADS 256
#define WIDE 1
#define MAPPED 1
#define SIDE_BY_SIDE 0
#define SQRT sqrtf
#endif
typedef S_TYPE S;
typedef C_TYPE C;
typedef P_TYPE P;
typedef PC_TYPE PC;
typedef R_TYPE R;
typedef RC_TYPE RC;
typedef INDEX_TYPE Index;

__device__ inline Index ElementAt(Index channel, Index j, Index channels, Index positions) {
  if (SIDE_BY_SIDE) return j * channels + channel;
  return (j / positions * channels + channel) * positions + j % positions;
}
__device__ inline Index ChannelOf(Index element, Index channels, Index positions) {
  return (SIDE_BY_SIDE ? element : element / positions) % channels;
}

// The sum over the block's threads that have the same channel; each of them gets it.
__device__ inline C ChannelSum(C v) {
#if LANES == 1
  return RowReduce(v, RowSum());
#else
  __shared__ C of_thread[THREADS];
  __syncthreads();  // it may still be read from the call before
  of_thread[threadIdx.x] = v;
  __syncthreads();
  v = of_thread[threadIdx.x % LANES];
  for (int k = LANES; k < THREADS; k += LANES) v += of_thread[k + threadIdx.x % LANES];
  return v;
#endif
}

// The elements [first, end) of a channel that a block sums in its turn; each thread takes some.
struct Part {
  Index channel, first, end;
  i64 at;  // of its sums

  __device__ Part(i64 item, i64 channels, i64 n, i64 part_count, i64 part_n) {
    const i64 tiles = (channels + LANES - 1) / LANES, part = item / tiles;
    channel = (Index)((item - part * tiles) * LANES + threadIdx.x % LANES);
    first = (Index)(part * part_n);
    end = (Index)(first + part_n < n ? first + part_n : n);
    at = channel * part_count + part;
  }
  __device__ Index own_first() const { return first + threadIdx.x / LANES * WIDE; }
};

// The sum of `value` of an index of a part, by all lanes of a warp.
template <typename Value>
__device__ inline double SumParts(i64 part_count, Value value) {
  double sum = 0;
#pragma unroll 4
  for (i64 part = threadIdx.x % 32; part < part_count; part += 32) sum += value(part);
  return WarpReduce(sum, RowSum());
}

#endif  // CAESURA_CORE_KERNELS_CUDA_NORMALIZATION_CHANNEL_ELEMENTS_CUH_
