// SPDX-License-Identifier: Apache-2.0
#include "core/kernels/cuda/tensor_table.h"

namespace caesura {

int CudaTensorTable::MostTensors(int addresses) {
  return (static_cast<int>(std::tuple_size_v<Words>) - 2) / (2 + addresses);
}

std::vector<CudaTensorTable> CudaTensorTable::Make(const std::vector<int64_t>& elements,
                                                   int addresses) {
  const int most = MostTensors(addresses);
  std::vector<CudaTensorTable> out;
  for (size_t i = 0; i < elements.size(); ++i) {
    if (elements[i] == 0) continue;
    if (out.empty() || static_cast<int>(out.back().tensors_.size()) == most) {
      out.emplace_back().addresses_ = addresses;
    }
    CudaTensorTable& table = out.back();
    const size_t place = 2 + table.tensors_.size();
    table.numbers_[place] = table.numbers_[1];
    table.numbers_[place + most] = elements[i];
    table.numbers_[0] += 1;
    table.numbers_[1] += (elements[i] + kChunk - 1) / kChunk;
    table.tensors_.push_back(static_cast<int>(i));
  }
  return out;
}

std::string CudaTensorTable::Source(int addresses) {
  const std::string most = "[" + std::to_string(MostTensors(addresses)) + "]";
  return "#define CHUNK " + std::to_string(kChunk) + "\n#define THREADS " +
         std::to_string(kThreads) + "\nstruct Table {\n  i64 tensors, chunks;\n  i64 first" + most +
         ", elements" + most + ";\n  char* at[" + std::to_string(addresses) + "]" + most +
         ";\n};\n" + R"(
// A part of a tensor: its elements [begin, begin + count).
struct Chunk { int tensor; i64 begin; int count; };

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
template <typename T, int N> struct Pack {
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
)";
}

CudaGrid CudaTensorTable::Grid(const CudaDevice& device) const {
  const int64_t most = int64_t{8} * device.multiprocessors();
  return {static_cast<unsigned>(std::clamp<int64_t>(chunks(), 1, most)), kThreads};
}

}  // namespace caesura
