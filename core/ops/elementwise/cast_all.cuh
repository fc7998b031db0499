// SPDX-License-Identifier: Apache-2.0
// Elements of one type as another, for many tensors.
#include "core/kernels/cuda/tensor_table.cuh"

#ifndef FROM_TYPE
#define FROM_TYPE float
#define TO_TYPE f16
#define AS_TYPE float
#endif
typedef FROM_TYPE From;
typedef TO_TYPE To;
typedef AS_TYPE As;

extern "C" __global__ void __launch_bounds__(THREADS)
    cast_all(const __grid_constant__ Table table) {
  constexpr int kPack = 16 / (sizeof(From) < sizeof(To) ? sizeof(From) : sizeof(To));
  Chunk chunk = {};
  for (int number = blockIdx.x; number < table.chunks; number += gridDim.x) {
    MoveTo(table, number, chunk);
    const From* x = (const From*)table.at[0][chunk.tensor] + chunk.begin;
    To* y = (To*)table.at[1][chunk.tensor] + chunk.begin;
    const bool whole = chunk.count == CHUNK && OnWord(x) && OnWord(y);
    for (int i = threadIdx.x * kPack; i < chunk.count; i += THREADS * kPack) {
      Pack<From, kPack> from;
      Pack<To, kPack> to;
      if (whole) from.LoadWords(x + i);
      else from.LoadSome(x + i, chunk.count - i);
#pragma unroll
      for (int k = 0; k < kPack; ++k) Store(to.v + k, (As)Load(from.v + k));
      if (whole) to.StoreWords(y + i);
      else to.StoreSome(y + i, chunk.count - i);
    }
  }
}
