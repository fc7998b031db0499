// SPDX-License-Identifier: Apache-2.0
#include "core/ops/random/mersenne_twister.h"

#include <algorithm>
#include <cmath>
#include <limits>

#include "core/kernels/simd/best_isa.h"

namespace caesura {
namespace {

constexpr int kSize = MersenneTwister::kSize, kShift = 397;
constexpr int64_t kTile = 1024;  // words

inline uint32_t Twisted(uint32_t high, uint32_t low, uint32_t far) {
  const uint32_t mixed = (high & 0x80000000u) | (low & 0x7fffffffu);
  return far ^ (mixed >> 1) ^ (-(low & 1u) & 0x9908b0dfu);
}

// Each word depends on three of before, the nearest of which is kSize - kShift words back.
inline void NextState(const uint32_t* old, uint32_t* state) {
  constexpr int kNear = kSize - kShift;
#pragma omp simd
  for (int i = 0; i < kNear; ++i) state[i] = Twisted(old[i], old[i + 1], old[i + kShift]);
#pragma omp simd
  for (int i = kNear; i < 2 * kNear; ++i) state[i] = Twisted(old[i], old[i + 1], state[i - kNear]);
#pragma omp simd
  for (int i = 2 * kNear; i < kSize - 1; ++i)
    state[i] = Twisted(old[i], old[i + 1], state[i - kNear]);
  state[kSize - 1] = Twisted(old[kSize - 1], state[0], state[kShift - 1]);
}

inline void Temper(const uint32_t* state, int count, uint32_t* words) {
#pragma omp simd
  for (int i = 0; i < count; ++i) {
    uint32_t y = state[i];
    y ^= y >> 11;
    y ^= (y << 7) & 0x9d2c5680u;
    y ^= (y << 15) & 0xefc60000u;
    words[i] = y ^ (y >> 18);
  }
}

// The lower 53 bits of a number whose upper half is the first word.
inline int64_t Bits53(const uint32_t* pair) {
  return static_cast<int64_t>(pair[0] & 0x1fffffu) << 32 | pair[1];
}

template <typename T>
inline void Compare(const uint32_t* words, int64_t limit, T one, int64_t count, T* y) {
#pragma omp simd
  for (int64_t i = 0; i < count; ++i) y[i] = Bits53(words + 2 * i) < limit ? one : T{0};
}

inline void Scale(const uint32_t* words, float low, float high, int64_t count, float* y) {
#pragma omp simd
  for (int64_t i = 0; i < count; ++i) {
    const float x = static_cast<float>(static_cast<int32_t>(words[i] & 0xffffffu)) * 0x1p-24f;
    const float value = x * (high - low) + low;
    y[i] = value == high ? low : value;
  }
}

inline void Scale(const uint32_t* words, double low, double high, int64_t count, double* y) {
#pragma omp simd
  for (int64_t i = 0; i < count; ++i) {
    const double value = static_cast<double>(Bits53(words + 2 * i)) * 0x1p-53 * (high - low) + low;
    y[i] = value == high ? low : value;
  }
}

}  // namespace

void MersenneTwister::Twist() {
  const State old = state_;
  OnBestIsa([from = old.data(), to = state_.data()] { NextState(from, to); });
  taken_ = 0;
}

void MersenneTwister::Fill(int64_t count, uint32_t* words) {
  while (count > 0) {
    if (taken_ == kSize) Twist();
    const int taking = static_cast<int>(std::min<int64_t>(kSize - taken_, count));
    OnBestIsa([=, from = state_.data() + taken_] { Temper(from, taking, words); });
    taken_ += taking;
    words += taking;
    count -= taking;
  }
}

template <typename Fn>
void MersenneTwister::ForEachTile(int words_each, int64_t count, Fn&& fn) {
  uint32_t words[kTile];
  for (int64_t at = 0; at < count;) {
    const int64_t taking = std::min(kTile / words_each, count - at);
    Fill(taking * words_each, words);
    OnBestIsa([&] { fn(at, words, taking); });
    at += taking;
  }
}

template <typename T>
void MersenneTwister::FillBernoulli(double p, T one, int64_t count, T* y) {
  // k 2^-53 < p, for the integer k; 2^53 p is exact.
  const auto limit = static_cast<int64_t>(std::ceil(std::ldexp(p, 53)));
  ForEachTile(2, count, [=](int64_t at, const uint32_t* words, int64_t taking) {
    Compare(words, limit, one, taking, y + at);
  });
}

template <typename T>
void MersenneTwister::FillUniform(T low, T high, int64_t count, T* y) {
  ForEachTile(sizeof(T) / 4, count, [=](int64_t at, const uint32_t* words, int64_t taking) {
    Scale(words, low, high, taking, y + at);
  });
}

template void MersenneTwister::FillBernoulli(double, uint8_t, int64_t, uint8_t*);
template void MersenneTwister::FillBernoulli(double, uint16_t, int64_t, uint16_t*);
template void MersenneTwister::FillBernoulli(double, uint32_t, int64_t, uint32_t*);
template void MersenneTwister::FillBernoulli(double, uint64_t, int64_t, uint64_t*);
template void MersenneTwister::FillUniform(float, float, int64_t, float*);
template void MersenneTwister::FillUniform(double, double, int64_t, double*);

}  // namespace caesura
