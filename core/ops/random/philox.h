// SPDX-License-Identifier: Apache-2.0
// Philox4x32-10 (Salmon, Moraes, Dror, Shaw: "Parallel random numbers: as easy as 1, 2, 3", SC
// 2011): random numbers as a function of a key and a counter. Element i of a subsequence depends on
// the key and on i alone, so any split over threads, and a recomputation in backward, gives the
// same numbers.
//
// The key words are the seed with the upper halves of step and subsequence; the counter is (i / 4,
// step, subsequence) in 32-bit words, so that subsequences of 2^34 elements with steps and numbers
// below 2^32 never meet.
#ifndef CAESURA_CORE_OPS_RANDOM_PHILOX_H_
#define CAESURA_CORE_OPS_RANDOM_PHILOX_H_

#include <algorithm>
#include <array>
#include <cstdint>

#include "core/kernels/kernel.h"

namespace caesura {

class Philox {
 public:
  using Block = std::array<uint32_t, 4>;

  explicit Philox(const RandomKey& key)
      : key_{static_cast<uint32_t>(key.seed) ^ static_cast<uint32_t>(key.step >> 32),
             static_cast<uint32_t>(key.seed >> 32) ^ static_cast<uint32_t>(key.subsequence >> 32)},
        step_(static_cast<uint32_t>(key.step)),
        subsequence_(static_cast<uint32_t>(key.subsequence)) {}

  // The four words of block `index`.
  Block At(uint64_t index) const {
    return Rounds(
        {static_cast<uint32_t>(index), static_cast<uint32_t>(index >> 32), step_, subsequence_},
        key_);
  }

  // The words of `count` blocks from `index` on, one block after the other.
  void Fill(uint64_t index, int64_t count, uint32_t* words) const;

  // Ten rounds on any counter and key, as published.
  static Block Rounds(Block counter, std::array<uint32_t, 2> key) {
    for (int round = 0; round < 10; ++round) {
      const uint64_t product0 = uint64_t{0xD2511F53u} * counter[0];
      const uint64_t product1 = uint64_t{0xCD9E8D57u} * counter[2];
      counter = {static_cast<uint32_t>(product1 >> 32) ^ counter[1] ^ key[0],
                 static_cast<uint32_t>(product1),
                 static_cast<uint32_t>(product0 >> 32) ^ counter[3] ^ key[1],
                 static_cast<uint32_t>(product0)};
      key[0] += 0x9E3779B9u;
      key[1] += 0xBB67AE85u;
    }
    return counter;
  }

 private:
  std::array<uint32_t, 2> key_;
  uint32_t step_;
  uint32_t subsequence_;
};

// Elements whose words are made together.
inline constexpr int64_t kWordTile = 256;

// Calls fn(at, words, count) over pieces of the elements [first, last) of the subsequence: words[j]
// belongs to element at + j. At most kWordTile at a time; pieces start at multiples of 4, but for
// the first.
template <typename Fn>
void ForEachWordTile(const Philox& philox, int64_t first, int64_t last, Fn&& fn) {
  uint32_t words[kWordTile];
  for (int64_t at = first; at < last;) {
    const int64_t block = at / 4, skip = at % 4;
    const int64_t count = std::min(kWordTile - skip, last - at);
    philox.Fill(static_cast<uint64_t>(block), (skip + count + 3) / 4, words);
    fn(at, static_cast<const uint32_t*>(words) + skip, count);
    at += count;
  }
}

// Uniform in [0, 1): 24 bits for float (fewer where a narrower type shall hold the number without
// rounding up to 1), 53 of two words for double.
inline float UniformFloat(uint32_t word, int bits = 24) {
  return static_cast<float>(word >> (32 - bits)) / static_cast<float>(1u << bits);
}
inline double UniformDouble(uint32_t high, uint32_t low) {
  const uint64_t bits = (static_cast<uint64_t>(high) << 32 | low) >> 11;
  return static_cast<double>(bits) * 1.1102230246251565e-16;
}

}  // namespace caesura

#endif  // CAESURA_CORE_OPS_RANDOM_PHILOX_H_
