// SPDX-License-Identifier: Apache-2.0
// Many tensors for one launch (tensor_table.h, which names the numbers). Kernels take the table as
// `const __grid_constant__ Table`, of which threads make no copy.
#ifndef CAESURA_CORE_KERNELS_CUDA_TENSOR_TABLE_CUH_
#define CAESURA_CORE_KERNELS_CUDA_TENSOR_TABLE_CUH_

#include "core/kernels/cuda/prelude.cuh"

#ifndef TENSORS
#define TENSORS 38
#define ADDRESSES 8
#define CHUNK 2048
#define THREADS 256
#endif

struct Table {
  i64 tensors, chunks;
  i64 first[TENSORS], elements[TENSORS];
  char* at[ADDRESSES][TENSORS];
};

// A part of a tensor: its elements [begin, begin + count).
struct Chunk {
  int tensor;
  i64 begin;
  int count;
};

// Moves on to a later chunk: a block passes each tensor once, which costs less than a search for
// each chunk.
__device__ inline void MoveTo(const Table& table, int number, Chunk& chunk) {
  int t = chunk.tensor;
  while (t + 1 < table.tensors && table.first[t + 1] <= number) ++t;
  chunk.tensor = t;
  chunk.begin = (number - table.first[t]) * (i64)CHUNK;
  const i64 left = table.elements[t] - chunk.begin;
  chunk.count = left < CHUNK ? (int)left : CHUNK;
}

// True where packs from `p` on may be moved by whole words, in a chunk without an end.
__device__ inline bool OnWord(const void* p) { return (u64)p % 16 == 0; }

// N elements side by side, as many as fill words of 16 bytes. Which thread has which elements does
// not depend on how they are moved, and so the order of sums does not either.
template <typename T, int N>
struct Pack {
  static constexpr int kWords = sizeof(T) * N / 16;
  T v[N];

  __device__ void LoadWords(const T* p) {
    uint4 words[kWords];
#pragma unroll
    for (int w = 0; w < kWords; ++w) words[w] = ((const uint4*)p)[w];
    memcpy(v, words, sizeof v);
  }
  // As memory that is read much later. A plain store of a word might be compiled into four.
  __device__ void StoreWords(T* p) const {
    uint4 words[kWords];
    memcpy(words, v, sizeof v);
#pragma unroll
    for (int w = 0; w < kWords; ++w) __stcs((uint4*)p + w, words[w]);
  }
  // Anywhere, of which only `left` elements are there; zeros are loaded for the others.
  __device__ void LoadSome(const T* p, int left) {
#pragma unroll
    for (int k = 0; k < N; ++k) v[k] = k < left ? p[k] : T();
  }
  __device__ void StoreSome(T* p, int left) const {
#pragma unroll
    for (int k = 0; k < N; ++k)
      if (k < left) p[k] = v[k];
  }
};

#endif  // CAESURA_CORE_KERNELS_CUDA_TENSOR_TABLE_CUH_
