// SPDX-License-Identifier: Apache-2.0
// Changes the JSON header or the tensors' bytes of a safetensors file, and sets the header's length
// right: a plain change would nearly always stop at the first check.
#ifndef CAESURA_TESTS_FUZZ_SAFETENSORS_MUTATOR_H_
#define CAESURA_TESTS_FUZZ_SAFETENSORS_MUTATOR_H_

#include <string>
#include <vector>

#include "tests/fuzz/target.h"

namespace caesura::fuzz {

inline constexpr size_t kHeaderLengthBytes = 8;

// The header of the file, empty where its length cannot be.
inline std::string HeaderOf(const uint8_t* data, size_t size) {
  uint64_t length = 0;
  if (size < kHeaderLengthBytes) return "";
  std::memcpy(&length, data, kHeaderLengthBytes);
  if (length > size - kHeaderLengthBytes) return "";
  return std::string(reinterpret_cast<const char*>(data) + kHeaderLengthBytes, length);
}

// Puts a number of the header's, or a name, in the place of another.
inline void MutateHeader(std::string* header, Random& random) {
  std::vector<size_t> digits;
  for (size_t i = 0; i < header->size(); ++i) {
    const auto is_digit = [&](size_t at) { return (*header)[at] >= '0' && (*header)[at] <= '9'; };
    if (is_digit(i) && (i == 0 || !is_digit(i - 1))) digits.push_back(i);
  }
  if (digits.empty()) return;
  const size_t from = digits[random.Below(digits.size())];
  const size_t end = std::min(header->find_first_not_of("0123456789", from), header->size());
  const bool is_extreme = random.Below(2) == 0;
  const int64_t value = is_extreme ? kExtremes[random.Below(std::size(kExtremes))]
                                   : static_cast<int64_t>(random.Below(20));
  header->replace(from, end - from, std::to_string(value));
}

inline size_t MutateSafetensors(uint8_t* data, size_t size, size_t max_size, unsigned seed) {
  Random random(seed);
  std::string header = HeaderOf(data, size);
  if (header.empty() || random.Below(8) == 0) return LLVMFuzzerMutate(data, size, max_size);
  std::string rest(reinterpret_cast<const char*>(data) + kHeaderLengthBytes + header.size(),
                   size - kHeaderLengthBytes - header.size());
  std::string& part = random.Below(4) == 0 ? rest : header;
  if (&part == &header && random.Below(2)) {
    MutateHeader(&header, random);
  } else {
    const size_t old_size = part.size(), room = part.size() + 64;
    part.resize(room);
    part.resize(LLVMFuzzerMutate(reinterpret_cast<uint8_t*>(part.data()), old_size, room));
  }
  const uint64_t length = header.size();
  std::string out(reinterpret_cast<const char*>(&length), kHeaderLengthBytes);
  out += header + rest;
  if (out.size() > max_size) return LLVMFuzzerMutate(data, size, max_size);
  std::memcpy(data, out.data(), out.size());
  return out.size();
}

}  // namespace caesura::fuzz

#endif  // CAESURA_TESTS_FUZZ_SAFETENSORS_MUTATOR_H_
