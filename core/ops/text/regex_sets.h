// SPDX-License-Identifier: Apache-2.0
// Sets of code points as RE2's syntax writes them: [a-z], [^[:alpha:]], \d, and single escaped
// characters.
#ifndef CAESURA_CORE_OPS_TEXT_REGEX_SETS_H_
#define CAESURA_CORE_OPS_TEXT_REGEX_SETS_H_

#include <string>

#include "core/ops/text/regex.h"

namespace caesura {

struct RegexFlags {
  bool fold = false;         // i
  bool multi_line = false;   // m
  bool dot_newline = false;  // s
};

// The pattern and how far it is read.
struct RegexInput {
  const std::string& text;
  size_t position;

  bool AtEnd() const { return position >= text.size(); }
  bool At(char c) const { return !AtEnd() && text[position] == c; }
  // Moves past `token` when it comes next.
  bool Take(const char* token);
  Result<char32_t> Next();
  Status Error(const std::string& what) const;
};

// Sorted, neighbours merged.
CodePointSet Normalized(CodePointSet set);
CodePointSet Negated(CodePointSet set);
// With the other cases of every letter.
CodePointSet Folded(CodePointSet set);

// \d \D \s \S \w \W
bool TakePerlSet(RegexInput* in, CodePointSet* out);
// \pL \p{Lu} \p{^Lu} \PL \P{Lu}: a general category of Unicode. Fails with kUnsupported for a
// script.
Result<bool> TakeUnicodeSet(RegexInput* in, const RegexFlags& flags, CodePointSet* out);
// A backslash and what it escapes.
Result<char32_t> ParseEscapedCharacter(RegexInput* in);
// From [ to ].
Result<CodePointSet> ParseBrackets(RegexInput* in, const RegexFlags& flags);

}  // namespace caesura

#endif  // CAESURA_CORE_OPS_TEXT_REGEX_SETS_H_
