// SPDX-License-Identifier: Apache-2.0
#include "core/ops/text/unicode.h"

#include <utf8proc.h>

#include "core/base/utf8.h"

namespace caesura {
namespace {

std::string MapText(std::string_view text, char32_t (*map)(char32_t)) {
  std::string out;
  out.reserve(text.size());
  for (size_t position = 0; position < text.size();) {
    const size_t first = position;
    const char32_t code_point = NextCodePoint(text, &position);
    if (code_point == kInvalidCodePoint) out.push_back(text[first]);
    else AppendUtf8(map(code_point), &out);
  }
  return out;
}

}  // namespace

bool IsSpace(char32_t c) {
  return (c >= 0x9 && c <= 0xD) || (c >= 0x1C && c <= 0x20) || c == 0x85 || c == 0xA0 ||
         c == 0x1680 || (c >= 0x2000 && c <= 0x200A) || c == 0x2028 || c == 0x2029 || c == 0x202F ||
         c == 0x205F || c == 0x3000;
}

char32_t ToLower(char32_t c) { return utf8proc_tolower(static_cast<utf8proc_int32_t>(c)); }
char32_t ToUpper(char32_t c) {
  // The capital of this letter is two letters; utf8proc has a rare one that no locale maps it to.
  constexpr char32_t kSharpS = 0xDF;
  return c == kSharpS ? c : utf8proc_toupper(static_cast<utf8proc_int32_t>(c));
}

std::string ToLower(std::string_view text) { return MapText(text, ToLower); }
std::string ToUpper(std::string_view text) { return MapText(text, ToUpper); }

}  // namespace caesura
