// SPDX-License-Identifier: Apache-2.0
// Reading and writing UTF-8; texts from outside may be anything.
#ifndef CAESURA_CORE_BASE_UTF8_H_
#define CAESURA_CORE_BASE_UTF8_H_

#include <cstddef>
#include <string>
#include <string_view>

namespace caesura {

inline constexpr char32_t kLastCodePoint = 0x10FFFF;
// NextCodePoint returns this for a byte that is not part of valid UTF-8.
inline constexpr char32_t kInvalidCodePoint = 0x110000;

// The code point at `*position`, which moves past it (by one byte where the text is not valid
// UTF-8). REQUIRES: *position < text.size()
char32_t NextCodePoint(std::string_view text, size_t* position);

// REQUIRES: code_point <= kLastCodePoint
void AppendUtf8(char32_t code_point, std::string* out);

bool IsUtf8(std::string_view text);
// The text with each byte that is not part of valid UTF-8 as "\xff".
std::string EscapedToUtf8(std::string_view text);

}  // namespace caesura

#endif  // CAESURA_CORE_BASE_UTF8_H_
