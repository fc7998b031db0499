// SPDX-License-Identifier: Apache-2.0
#include "core/base/utf8.h"

#include <utf8proc.h>

#include <cassert>

namespace caesura {

char32_t NextCodePoint(std::string_view text, size_t* position) {
  assert(*position < text.size());
  utf8proc_int32_t out = 0;
  const auto length =
      utf8proc_iterate(reinterpret_cast<const utf8proc_uint8_t*>(text.data() + *position),
                       static_cast<utf8proc_ssize_t>(text.size() - *position), &out);
  *position += length > 0 ? static_cast<size_t>(length) : 1;
  return length > 0 ? static_cast<char32_t>(out) : kInvalidCodePoint;
}

void AppendUtf8(char32_t code_point, std::string* out) {
  assert(code_point <= kLastCodePoint);
  utf8proc_uint8_t bytes[4];
  const auto length = utf8proc_encode_char(static_cast<utf8proc_int32_t>(code_point), bytes);
  out->append(reinterpret_cast<const char*>(bytes), static_cast<size_t>(length));
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
