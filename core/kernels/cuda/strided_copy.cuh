// SPDX-License-Identifier: Apache-2.0
// Elements from where one walk is to where another is, VECTOR at once where `vectors` says so.
#include "core/kernels/cuda/prelude.cuh"

#ifndef WORD_TYPE
#define WORD_TYPE unsigned
#define VECTOR 4
#define WALK_NUMBERS 3
#define VECTOR_OFFSETS i64 offset0 = i * VECTOR, offset1 = i * VECTOR
#define OFFSETS i64 offset0 = i, offset1 = i
#endif
typedef WORD_TYPE Word;
struct Walk {
  i64 at[WALK_NUMBERS];
};

extern "C" __global__ void strided_copy(const Word* from, Word* to, i64 n, i64 vectors, Walk walk) {
#if VECTOR > 1
  for (i64 i = blockIdx.x * (i64)blockDim.x + threadIdx.x; i < vectors;
       i += (i64)gridDim.x * blockDim.x) {
    VECTOR_OFFSETS;
    StoreVector<true>(to + offset1, LoadVector<VECTOR, true>(from + offset0));
  }
#endif
  for (i64 i = vectors * VECTOR + blockIdx.x * (i64)blockDim.x + threadIdx.x; i < n;
       i += (i64)gridDim.x * blockDim.x) {
    OFFSETS;
    to[offset1] = from[offset0];
  }
}
