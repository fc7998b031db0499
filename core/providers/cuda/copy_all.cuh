// SPDX-License-Identifier: Apache-2.0
// Copies many tensors, which all consist of such words.
#include "core/kernels/cuda/tensor_table.cuh"

#ifndef WORD_TYPE
#define WORD_TYPE uint4
#endif
typedef WORD_TYPE Word;

extern "C" __global__ void __launch_bounds__(THREADS, 8)
    copy_all(const __grid_constant__ Table table) {
  constexpr int kAtOnce = 4;
  Chunk chunk = {};
  for (int number = blockIdx.x; number < table.chunks; number += gridDim.x) {
    MoveTo(table, number, chunk);
    const Word* from = (const Word*)table.at[0][chunk.tensor] + chunk.begin;
    Word* to = (Word*)table.at[1][chunk.tensor] + chunk.begin;
    for (int i = threadIdx.x; i < chunk.count; i += kAtOnce * THREADS) {
      // All are on their way before the first is written, as the compiler could not arrange.
      Word words[kAtOnce];
#pragma unroll
      for (int k = 0; k < kAtOnce; ++k)
        if (i + k * THREADS < chunk.count) words[k] = from[i + k * THREADS];
#pragma unroll
      for (int k = 0; k < kAtOnce; ++k)
        if (i + k * THREADS < chunk.count) to[i + k * THREADS] = words[k];
    }
  }
}
