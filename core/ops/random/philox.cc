// SPDX-License-Identifier: Apache-2.0
#include "core/ops/random/philox.h"

#include "core/kernels/simd/best_isa.h"

namespace caesura {
namespace {

// Philox::Rounds over many counters, in scalars that the compiler turns into vectors.
inline void FillBlocks(std::array<uint32_t, 2> key, uint32_t step, uint32_t subsequence,
                       uint64_t index, int64_t count, uint32_t* words) {
#pragma omp simd
  for (int64_t b = 0; b < count; ++b) {
    const uint64_t i = index + static_cast<uint64_t>(b);
    uint32_t c0 = static_cast<uint32_t>(i), c1 = static_cast<uint32_t>(i >> 32), c2 = step,
             c3 = subsequence;
    uint32_t k0 = key[0], k1 = key[1];
#pragma GCC unroll 10
    for (int round = 0; round < 10; ++round) {
      const uint64_t product0 = uint64_t{0xD2511F53u} * c0, product1 = uint64_t{0xCD9E8D57u} * c2;
      c0 = static_cast<uint32_t>(product1 >> 32) ^ c1 ^ k0;
      c1 = static_cast<uint32_t>(product1);
      c2 = static_cast<uint32_t>(product0 >> 32) ^ c3 ^ k1;
      c3 = static_cast<uint32_t>(product0);
      k0 += 0x9E3779B9u;
      k1 += 0xBB67AE85u;
    }
    words[4 * b] = c0;
    words[4 * b + 1] = c1;
    words[4 * b + 2] = c2;
    words[4 * b + 3] = c3;
  }
}

}  // namespace

void Philox::Fill(uint64_t index, int64_t count, uint32_t* words) const {
  OnBestIsa([=, key = key_, step = step_, subsequence = subsequence_] {
    FillBlocks(key, step, subsequence, index, count, words);
  });
}

}  // namespace caesura
