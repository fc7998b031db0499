// SPDX-License-Identifier: Apache-2.0
#include "core/base/utf8.h"

#include <cassert>

namespace caesura {
namespace {

// Bytes of a sequence that begins with `lead`, 0 when nothing begins so.
int SequenceLength(unsigned char lead) {
  if (lead < 0x80) return 1;
  if (lead >= 0xC2 && lead <= 0xDF) return 2;
  if (lead >= 0xE0 && lead <= 0xEF) return 3;
  if (lead >= 0xF0 && lead <= 0xF4) return 4;
  return 0;
}

}  // namespace

char32_t NextCodePoint(std::string_view text, size_t* position) {
  static constexpr char32_t kSmallest[] = {0, 0, 0x80, 0x800, 0x10000};
  assert(*position < text.size());
  const size_t first = (*position)++;
  const unsigned char lead = static_cast<unsigned char>(text[first]);
  const int length = SequenceLength(lead);
  if (length == 1) return lead;
  if (length == 0 || first + length > text.size()) return kInvalidCodePoint;
  char32_t out = lead & (0x7F >> length);
  for (int i = 1; i < length; ++i) {
    const unsigned char next = static_cast<unsigned char>(text[first + i]);
    if ((next & 0xC0) != 0x80) return kInvalidCodePoint;
    out = (out << 6) | (next & 0x3F);
  }
  const bool surrogate = out >= 0xD800 && out <= 0xDFFF;
  if (out < kSmallest[length] || out > kLastCodePoint || surrogate) return kInvalidCodePoint;
  *position = first + length;
  return out;
}

bool IsUtf8(std::string_view text) {
  for (size_t position = 0; position < text.size();) {
    if (NextCodePoint(text, &position) == kInvalidCodePoint) return false;
  }
  return true;
}

std::string EscapedToUtf8(std::string_view text) {
  constexpr char kDigits[] = "0123456789abcdef";
  std::string out;
  for (size_t position = 0; position < text.size();) {
    const size_t first = position;
    if (NextCodePoint(text, &position) != kInvalidCodePoint) {
      out.append(text.substr(first, position - first));
      continue;
    }
    const unsigned char byte = static_cast<unsigned char>(text[first]);
    out.append({'\\', 'x', kDigits[byte >> 4], kDigits[byte & 15]});
  }
  return out;
}

}  // namespace caesura
