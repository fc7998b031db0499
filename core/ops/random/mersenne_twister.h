// SPDX-License-Identifier: Apache-2.0
// MT19937 (Matsumoto, Nishimura: "Mersenne twister: a 623-dimensionally equidistributed uniform
// pseudo-random number generator", 1998): the words that std::mt19937 and PyTorch's CPU generator
// give, many at a time.
#ifndef CAESURA_CORE_OPS_RANDOM_MERSENNE_TWISTER_H_
#define CAESURA_CORE_OPS_RANDOM_MERSENNE_TWISTER_H_

#include <array>
#include <cstdint>

namespace caesura {

class MersenneTwister {
 public:
  static constexpr int kSize = 624;
  using State = std::array<uint32_t, kSize>;

  // taken: of the words that this state gives, how many were taken: 0 to kSize.
  MersenneTwister(const State& state, int taken) : state_(state), taken_(taken) {}

  // The next words.
  void Fill(int64_t count, uint32_t* words);
  // Elements that are `one` with the probability p in [0, 1], else 0: each compares 53 bits of two
  // words with p.
  template <typename T>
  void FillBernoulli(double p, T one, int64_t count, T* y);
  // Numbers in [low, high): 24 bits of a word for each float, 53 of two for each double. What
  // rounds up to `high` is `low`.
  template <typename T>
  void FillUniform(T low, T high, int64_t count, T* y);

  const State& state() const { return state_; }
  int taken() const { return taken_; }

 private:
  // Calls fn(at, words, count) with the words of the elements [at, at + count).
  template <typename Fn>
  void ForEachTile(int words_each, int64_t count, Fn&& fn);
  void Twist();

  State state_;
  int taken_;
};

}  // namespace caesura

#endif  // CAESURA_CORE_OPS_RANDOM_MERSENNE_TWISTER_H_
