// SPDX-License-Identifier: Apache-2.0
#include "core/ops/text/regex_sets.h"

#include <utf8proc.h>

#include <algorithm>
#include <cstring>
#include <map>

#include "core/base/status_macros.h"
#include "core/base/utf8.h"
#include "core/ops/text/unicode.h"

namespace caesura {
namespace {

struct NamedSet {
  const char* name;
  CodePointSet set;
};

const std::vector<NamedSet>& PosixSets() {
  static const auto* sets = new std::vector<NamedSet>{
      {"alnum", {{'0', '9'}, {'A', 'Z'}, {'a', 'z'}}},
      {"alpha", {{'A', 'Z'}, {'a', 'z'}}},
      {"ascii", {{0, 0x7F}}},
      {"blank", {{'\t', '\t'}, {' ', ' '}}},
      {"cntrl", {{0, 0x1F}, {0x7F, 0x7F}}},
      {"digit", {{'0', '9'}}},
      {"graph", {{'!', '~'}}},
      {"lower", {{'a', 'z'}}},
      {"print", {{' ', '~'}}},
      {"punct", {{'!', '/'}, {':', '@'}, {'[', '`'}, {'{', '~'}}},
      {"space", {{'\t', '\r'}, {' ', ' '}}},
      {"upper", {{'A', 'Z'}}},
      {"word", {{'0', '9'}, {'A', 'Z'}, {'_', '_'}, {'a', 'z'}}},
      {"xdigit", {{'0', '9'}, {'A', 'F'}, {'a', 'f'}}},
  };
  return *sets;
}

// Letters that are the same but for their case, in groups; each letter with the others of its
// group.
const std::map<char32_t, std::vector<char32_t>>& CaseGroups() {
  static const auto* groups = [] {
    std::map<char32_t, std::vector<char32_t>> by_small_letter;
    for (char32_t c = 0; c <= kLastCodePoint; ++c) {
      const char32_t capital = ToUpper(c), small = ToLower(capital);
      if (capital != c || small != c) by_small_letter[small].push_back(c);
    }
    auto* out = new std::map<char32_t, std::vector<char32_t>>;
    for (auto& [small, letters] : by_small_letter) {
      if (std::find(letters.begin(), letters.end(), small) == letters.end())
        letters.push_back(small);
      for (const char32_t letter : letters) (*out)[letter] = letters;
    }
    return out;
  }();
  return *groups;
}

void Append(const CodePointSet& more, CodePointSet* set) {
  set->insert(set->end(), more.begin(), more.end());
}

int HexDigit(char c) {
  if (c >= '0' && c <= '9') return c - '0';
  if (c >= 'a' && c <= 'f') return c - 'a' + 10;
  if (c >= 'A' && c <= 'F') return c - 'A' + 10;
  return -1;
}

// [:name:] or [:^name:]
Result<bool> TakePosixSet(RegexInput* in, CodePointSet* out) {
  if (!in->Take("[:")) return false;
  const size_t end = in->text.find(":]", in->position);
  if (end == std::string::npos) {
    in->position -= 2;
    return false;
  }
  const bool negated = in->Take("^");
  const std::string name = in->text.substr(in->position, end - in->position);
  for (const NamedSet& named : PosixSets()) {
    if (name != named.name) continue;
    in->position = end + 2;
    Append(negated ? Negated(named.set) : named.set, out);
    return true;
  }
  return in->Error("unknown character class [:" + name + ":]");
}

// Behind \x: two digits, or any number in braces.
Result<char32_t> ParseHex(RegexInput* in) {
  const bool braces = in->Take("{");
  char32_t value = 0;
  int digits = 0;
  while (!in->AtEnd() && HexDigit(in->text[in->position]) >= 0 && (braces || digits < 2)) {
    value = value * 16 + HexDigit(in->text[in->position++]);
    ++digits;
    if (value > kLastCodePoint) return in->Error("invalid escape");
  }
  if (digits == 0 || (!braces && digits != 2) || (braces && !in->Take("}")))
    return in->Error("invalid escape");
  return value;
}

// Octal after a backslash; \1 to \9 alone would be back-references.
Result<char32_t> ParseOctal(RegexInput* in, char first) {
  auto octal = [&] {
    return !in->AtEnd() && in->text[in->position] >= '0' && in->text[in->position] <= '7';
  };
  if (first != '0' && !octal()) return in->Error("back-references are not part of the syntax");
  char32_t value = first - '0';
  for (int i = 0; i < 2 && octal(); ++i) value = value * 8 + (in->text[in->position++] - '0');
  return value;
}

}  // namespace

bool RegexInput::Take(const char* token) {
  const size_t length = std::strlen(token);
  if (text.compare(position, length, token) != 0) return false;
  position += length;
  return true;
}

Result<char32_t> RegexInput::Next() {
  if (AtEnd()) return Error("ends too early");
  const char32_t c = NextCodePoint(text, &position);
  if (c == kInvalidCodePoint) return Error("invalid UTF-8");
  return c;
}

Status RegexInput::Error(const std::string& what) const {
  return InvalidArgument("regular expression '" + text + "': " + what + " at byte " +
                         std::to_string(position));
}

CodePointSet Normalized(CodePointSet set) {
  std::sort(set.begin(), set.end());
  CodePointSet out;
  for (const auto& range : set) {
    if (!out.empty() && range.first <= out.back().second + 1) {
      out.back().second = std::max(out.back().second, range.second);
    } else {
      out.push_back(range);
    }
  }
  return out;
}

CodePointSet Negated(CodePointSet set) {
  CodePointSet out;
  char32_t next = 0;
  for (const auto& [first, last] : Normalized(std::move(set))) {
    if (first > next) out.push_back({next, first - 1});
    next = last + 1;
  }
  if (next <= kLastCodePoint) out.push_back({next, kLastCodePoint});
  return out;
}

CodePointSet Folded(CodePointSet set) {
  const auto& groups = CaseGroups();
  const size_t count = set.size();
  for (size_t i = 0; i < count; ++i) {
    const auto [first, last] = set[i];
    for (auto it = groups.lower_bound(first); it != groups.end() && it->first <= last; ++it)
      for (const char32_t letter : it->second) set.push_back({letter, letter});
  }
  return set;
}

bool TakePerlSet(RegexInput* in, CodePointSet* out) {
  static const auto* sets = new std::vector<NamedSet>{
      {"\\d", {{'0', '9'}}},
      {"\\s", {{'\t', '\n'}, {'\f', '\r'}, {' ', ' '}}},  // unlike [:space:] without \v
      {"\\w", {{'0', '9'}, {'A', 'Z'}, {'_', '_'}, {'a', 'z'}}},
  };
  for (const NamedSet& named : *sets) {
    const std::string capital = {'\\', static_cast<char>(named.name[1] - 'a' + 'A')};
    const bool negated = in->Take(capital.c_str());
    if (!negated && !in->Take(named.name)) continue;
    Append(negated ? Negated(named.set) : named.set, out);
    return true;
  }
  return false;
}

Result<bool> TakeUnicodeSet(RegexInput* in, const RegexFlags& flags, CodePointSet* out) {
  const bool capital = in->Take("\\P");
  if (!capital && !in->Take("\\p")) return false;
  std::string name;
  bool negated = capital;
  if (in->Take("{")) {
    const size_t end = in->text.find('}', in->position);
    if (end == std::string::npos) return in->Error("missing }");
    negated = in->Take("^") != capital;
    name = in->text.substr(in->position, end - in->position);
    in->position = end + 1;
  } else {
    ASSIGN_OR_RETURN(const char32_t letter, in->Next());
    AppendUtf8(letter, &name);
  }
  CodePointSet set;
  for (char32_t c = 0; c <= kLastCodePoint; ++c) {
    const auto code_point = static_cast<utf8proc_int32_t>(c);
    const std::string_view category = utf8proc_category_string(code_point);
    if (name != "Any" && (name.empty() || name.size() > 2 || !category.starts_with(name))) continue;
    if (set.empty() || set.back().second + 1 != c) set.push_back({c, c});
    set.back().second = c;
  }
  if (set.empty()) {
    return Unsupported(
        in->Error("class '" + name + "': expected a general category, such as L, Lu or Nd")
            .message());
  }
  if (flags.fold) set = Folded(std::move(set));
  Append(negated ? Negated(std::move(set)) : set, out);
  return true;
}

Result<char32_t> ParseEscapedCharacter(RegexInput* in) {
  static constexpr char kNames[] = "aftnrv";
  static constexpr char kMeanings[] = "\a\f\t\n\r\v";
  in->position += 1;
  ASSIGN_OR_RETURN(const char32_t c, in->Next());
  if (c == 'C') return Unsupported(in->Error("\\C is not supported").message());
  if (c == 'x') return ParseHex(in);
  if (c >= '0' && c <= '9') {
    if (c > '7') return in->Error("back-references are not part of the syntax");
    return ParseOctal(in, static_cast<char>(c));
  }
  if (c < 0x80 && c != 0) {
    const char* name = std::strchr(kNames, static_cast<int>(c));
    if (name != nullptr) return static_cast<char32_t>(kMeanings[name - kNames]);
    const bool letter = (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z');
    if (!letter && c > ' ' && c != 0x7F) return c;
  }
  return in->Error("invalid escape");
}

Result<CodePointSet> ParseBrackets(RegexInput* in, const RegexFlags& flags) {
  const size_t start = in->position;
  in->Take("[");
  const bool negated = in->Take("^");
  CodePointSet set;
  auto character = [in]() { return in->At('\\') ? ParseEscapedCharacter(in) : in->Next(); };
  for (bool first = true; first || !in->At(']'); first = false) {
    if (in->AtEnd()) {
      in->position = start;
      return in->Error("missing ]");
    }
    if (TakePerlSet(in, &set)) continue;
    ASSIGN_OR_RETURN(const bool unicode, TakeUnicodeSet(in, flags, &set));
    if (unicode) continue;
    ASSIGN_OR_RETURN(const bool posix, TakePosixSet(in, &set));
    if (posix) continue;
    ASSIGN_OR_RETURN(const char32_t low, character());
    char32_t high = low;
    const bool range =
        in->At('-') && in->position + 1 < in->text.size() && in->text[in->position + 1] != ']';
    if (range) {
      in->Take("-");
      ASSIGN_OR_RETURN(high, character());
    }
    if (high < low) return in->Error("invalid character range");
    set.push_back({low, high});
  }
  in->Take("]");
  if (flags.fold) set = Folded(std::move(set));
  return negated ? Negated(std::move(set)) : set;
}

}  // namespace caesura
