// SPDX-License-Identifier: Apache-2.0
// GlobalNorm: the sum of squares of the chunks of a block, in double.
#include "core/kernels/cuda/row_reduce.cuh"
#include "core/kernels/cuda/tensor_table.cuh"

#ifndef S_TYPE
#define S_TYPE float
#endif
typedef S_TYPE S;

extern "C" __global__ void __launch_bounds__(THREADS)
    squares(const __grid_constant__ Table table, double* parts) {
  constexpr int kPack = 16 / sizeof(S), kPacks = CHUNK / THREADS / kPack;
  double sum = 0;
  Chunk chunk = {};
  for (int number = blockIdx.x; number < table.chunks; number += gridDim.x) {
    MoveTo(table, number, chunk);
    const S* x = (const S*)table.at[0][chunk.tensor] + chunk.begin;
    // All packs of the chunk are on their way before the first is added.
    Pack<S, kPack> packs[kPacks];
    if (chunk.count == CHUNK && OnWord(x)) {
#pragma unroll
      for (int p = 0; p < kPacks; ++p) packs[p].LoadWords(x + (p * THREADS + threadIdx.x) * kPack);
    } else {
#pragma unroll
      for (int p = 0; p < kPacks; ++p) {
        const int i = (p * THREADS + threadIdx.x) * kPack;
        packs[p].LoadSome(x + i, chunk.count - i);
      }
    }
#pragma unroll
    for (int p = 0; p < kPacks; ++p) {
#pragma unroll
      for (int k = 0; k < kPack; ++k) {
        const double v = (double)Load(packs[p].v + k);
        sum += v * v;
      }
    }
  }
  sum = RowReduce(sum, RowSum());
  if (threadIdx.x == 0) parts[blockIdx.x] = sum;
}
