// SPDX-License-Identifier: Apache-2.0
// A hash for the fingerprints of plans and programs, which tell whether two of them are the same.
#ifndef CAESURA_CORE_GRAPH_FINGERPRINT_H_
#define CAESURA_CORE_GRAPH_FINGERPRINT_H_

#include <cstdint>
#include <string>

#include "core/graph/graph.h"

namespace caesura {

// FNV-1a
class Hash {
 public:
  void Mix(const std::string& text) {
    for (unsigned char c : text) value_ = (value_ ^ c) * 1099511628211ull;
    value_ = (value_ ^ 0x1f) * 1099511628211ull;  // so that "ab" "c" is not "a" "bc"
  }
  void Mix(uint64_t number) { Mix(std::to_string(number)); }
  uint64_t value() const { return value_; }

 private:
  uint64_t value_ = 14695981039346656037ull;
};

// The op and its attributes, not names and edges. Attributes that are bodies and tensors count only
// by their presence.
void MixNode(Hash& hash, const Node& node);

}  // namespace caesura

#endif  // CAESURA_CORE_GRAPH_FINGERPRINT_H_
