// SPDX-License-Identifier: Apache-2.0
// The little of Unicode that the string ops need: UTF-8, white space, and one-to-one case mapping of the Latin,
// Greek, Cyrillic and Armenian alphabets. Independent of the process's locale.
#ifndef CAESURA_CORE_KERNELS_CPU_UNICODE_H_
#define CAESURA_CORE_KERNELS_CPU_UNICODE_H_

#include <cstddef>
#include <string>
#include <string_view>

namespace caesura {

inline constexpr char32_t kLastCodePoint = 0x10FFFF;
// What NextCodePoint gives for a byte that is not part of valid UTF-8.
inline constexpr char32_t kInvalidCodePoint = 0x110000;

// The code point at `*position`, which moves behind it (by one byte where the text is not valid UTF-8).
// REQUIRES: *position < text.size()
char32_t NextCodePoint(std::string_view text, size_t* position);
void AppendUtf8(char32_t code_point, std::string* out);

bool IsSpace(char32_t code_point);
char32_t ToLower(char32_t code_point);
char32_t ToUpper(char32_t code_point);
// Bytes that are not valid UTF-8 stay as they are.
std::string ToLower(std::string_view text);
std::string ToUpper(std::string_view text);

}  // namespace caesura

#endif  // CAESURA_CORE_KERNELS_CPU_UNICODE_H_
