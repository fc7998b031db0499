// SPDX-License-Identifier: Apache-2.0
#include "core/ops/text/unicode.h"

namespace caesura {
namespace {

// A run of capitals [first, last]: the small letter is `offset` above; for kPairs capitals and
// small letters take turns, beginning with a capital at `first`.
struct CaseRange {
  char32_t first, last;
  int offset;
};
constexpr int kPairs = 0;

constexpr CaseRange kCaseRanges[] = {
    {'A', 'Z', 32},           {0xC0, 0xD6, 32},
    {0xD8, 0xDE, 32},         {0x100, 0x12F, kPairs},
    {0x132, 0x137, kPairs},   {0x139, 0x148, kPairs},
    {0x14A, 0x177, kPairs},   {0x178, 0x178, 0xFF - 0x178},
    {0x179, 0x17E, kPairs},   {0x1CD, 0x1DC, kPairs},
    {0x1DE, 0x1EF, kPairs},   {0x1F8, 0x21F, kPairs},
    {0x1A0, 0x1A5, kPairs},   {0x1AF, 0x1B0, kPairs},
    {0x246, 0x24F, kPairs},   {0x222, 0x233, kPairs},
    {0x386, 0x386, 38},       {0x388, 0x38A, 37},
    {0x38C, 0x38C, 64},       {0x38E, 0x38F, 63},
    {0x391, 0x3A1, 32},       {0x3A3, 0x3AB, 32},
    {0x400, 0x40F, 80},       {0x410, 0x42F, 32},
    {0x460, 0x481, kPairs},   {0x48A, 0x4BF, kPairs},
    {0x4C1, 0x4CE, kPairs},   {0x4D0, 0x52F, kPairs},
    {0x531, 0x556, 48},       {0x1E00, 0x1E95, kPairs},
    {0x1EA0, 0x1EFF, kPairs}, {0xFF21, 0xFF3A, 32},
};

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

void AppendUtf8(char32_t c, std::string* out) {
  if (c < 0x80) {
    out->push_back(static_cast<char>(c));
    return;
  }
  const int length = c < 0x800 ? 2 : c < 0x10000 ? 3 : 4;
  static constexpr unsigned char kLead[] = {0, 0, 0xC0, 0xE0, 0xF0};
  out->push_back(static_cast<char>(kLead[length] | (c >> (6 * (length - 1)))));
  for (int i = length - 2; i >= 0; --i)
    out->push_back(static_cast<char>(0x80 | ((c >> (6 * i)) & 0x3F)));
}

bool IsSpace(char32_t c) {
  return (c >= 0x9 && c <= 0xD) || (c >= 0x1C && c <= 0x20) || c == 0x85 || c == 0xA0 ||
         c == 0x1680 || (c >= 0x2000 && c <= 0x200A) || c == 0x2028 || c == 0x2029 || c == 0x202F ||
         c == 0x205F || c == 0x3000;
}

char32_t ToLower(char32_t c) {
  for (const CaseRange& range : kCaseRanges) {
    if (c < range.first || c > range.last) continue;
    if (range.offset == kPairs) return c + ((c - range.first) % 2 == 0 ? 1 : 0);
    return c + range.offset;
  }
  return c;
}

char32_t ToUpper(char32_t c) {
  for (const CaseRange& range : kCaseRanges) {
    if (range.offset == kPairs) {
      if (c >= range.first && c <= range.last) return c - (c - range.first) % 2;
    } else if (c >= range.first + range.offset && c <= range.last + range.offset) {
      return c - range.offset;
    }
  }
  return c == 0x3C2 ? 0x3A3 : c;  // final sigma
}

std::string ToLower(std::string_view text) { return MapText(text, ToLower); }
std::string ToUpper(std::string_view text) { return MapText(text, ToUpper); }

}  // namespace caesura
