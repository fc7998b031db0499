// SPDX-License-Identifier: Apache-2.0
// What every fuzz target has: the two entry points that libFuzzer and standalone_main.cc call, and
// the bytes of one input, taken from the front.
#ifndef CAESURA_TESTS_FUZZ_TARGET_H_
#define CAESURA_TESTS_FUZZ_TARGET_H_

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <limits>
#include <string>

extern "C" {
// Runs one input. Returns 0; a fault ends the process.
int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size);
// A target may bring a mutator of its own.
__attribute__((weak)) size_t LLVMFuzzerCustomMutator(uint8_t* data, size_t size, size_t max_size,
                                                     unsigned seed);
// Plain changes of bytes, for mutators: libFuzzer's, or standalone_main.cc's.
size_t LLVMFuzzerMutate(uint8_t* data, size_t size, size_t max_size);
}

namespace caesura::fuzz {

// A promise of the library that does not hold ends the process, as a sanitizer's report does.
inline void Require(bool holds, const char* promise) {
  if (holds) return;
  std::fprintf(stderr, "broken promise: %s\n", promise);
  std::abort();
}

// Integers at which arithmetic goes wrong.
inline constexpr int64_t kExtremes[] = {0,
                                        1,
                                        -1,
                                        2,
                                        127,
                                        128,
                                        255,
                                        256,
                                        65535,
                                        65536,
                                        std::numeric_limits<int32_t>::max(),
                                        std::numeric_limits<int32_t>::min(),
                                        int64_t{1} << 31,
                                        int64_t{1} << 32,
                                        (int64_t{1} << 32) + 1,
                                        -(int64_t{1} << 32),
                                        int64_t{1} << 40,
                                        int64_t{1} << 61,
                                        int64_t{1} << 62,
                                        -(int64_t{1} << 62),
                                        std::numeric_limits<int64_t>::max(),
                                        std::numeric_limits<int64_t>::max() - 1,
                                        std::numeric_limits<int64_t>::min(),
                                        std::numeric_limits<int64_t>::min() + 1};

// Small numbers, quick and the same everywhere.
class Random {
 public:
  explicit Random(uint64_t seed) : state_(seed * 2 + 1) {}
  uint64_t operator()() {
    state_ = state_ * 6364136223846793005u + 1442695040888963407u;
    return state_ >> 33 ^ state_ >> 13;
  }
  // In [0, count). REQUIRES: count > 0.
  size_t Below(size_t count) { return (*this)() % count; }

 private:
  uint64_t state_;
};

// The bytes of an input, from the front; zeros after its end.
class Bytes {
 public:
  Bytes(const uint8_t* data, size_t size) : data_(data), size_(size) {}
  size_t left() const { return size_; }
  uint8_t Byte() { return size_ == 0 ? 0 : (--size_, *data_++); }
  int64_t Raw() {
    int64_t value = 0;
    const size_t count = std::min<size_t>(size_, 8);
    if (count > 0) std::memcpy(&value, data_, count);
    data_ += count, size_ -= count;
    return value;
  }
  // Mostly a small number, at times one at which arithmetic goes wrong, at times any; 1 after the
  // end.
  int64_t Int() {
    static constexpr int64_t kSmall[] = {1, 2, 0, 3, -1, 4, 1, 2, 5, 2};
    const uint8_t kind = Byte();
    if (kind < 160) return kSmall[kind % std::size(kSmall)];
    return kind < 240 ? kExtremes[kind % std::size(kExtremes)] : Raw();
  }
  // Up to the next zero byte.
  std::string Text(size_t max_size) {
    std::string out;
    while (out.size() < max_size && size_ > 0) {
      const char c = static_cast<char>(Byte());
      if (c == 0) break;
      out += c;
    }
    return out;
  }

 private:
  const uint8_t* data_;
  size_t size_;
};

}  // namespace caesura::fuzz

#endif  // CAESURA_TESTS_FUZZ_TARGET_H_
