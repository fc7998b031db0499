// SPDX-License-Identifier: Apache-2.0
// Recursive descent over RE2's grammar; what a set means in brackets is in regex_sets.cc.
#include "core/base/status_macros.h"
#include "core/ops/text/regex.h"
#include "core/ops/text/regex_sets.h"
#include "core/ops/text/unicode.h"

namespace caesura {
namespace {

// As in RE2.
constexpr int kMaxDepth = 1000;
constexpr int kMaxRepeat = 1000;

class Parser {
 public:
  explicit Parser(const std::string& pattern) : in_{pattern, 0} {}

  Result<RegexTree> Run() {
    ASSIGN_OR_RETURN(tree_.root, ParseAlternatives());
    if (!in_.AtEnd()) return in_.Error("unexpected )");
    return std::move(tree_);
  }

 private:
  using Kind = RegexNode::Kind;
  using Assertion = RegexNode::Assertion;

  int AddNode(RegexNode node) {
    tree_.nodes.push_back(std::move(node));
    return static_cast<int>(tree_.nodes.size()) - 1;
  }
  int AddAssertion(Assertion assertion) {
    return AddNode({.kind = Kind::kAssert, .assertion = assertion});
  }
  int AddSet(CodePointSet set) {
    return AddNode({.kind = Kind::kSet, .set = Normalized(std::move(set))});
  }
  int AddLiteral(char32_t c) {
    return AddSet(flags_.fold ? Folded({{c, c}}) : CodePointSet{{c, c}});
  }

  // a|b|c up to ) or the end. Flags that a group sets end with it, those set in the open last to
  // the group's end.
  Result<int> ParseAlternatives() {
    if (++depth_ > kMaxDepth) return in_.Error("nested too deeply");
    RegexNode alternatives{.kind = Kind::kAlternate};
    do {
      ASSIGN_OR_RETURN(const int branch, ParseConcat());
      alternatives.children.push_back(branch);
    } while (in_.Take("|"));
    --depth_;
    return alternatives.children.size() == 1 ? alternatives.children[0]
                                             : AddNode(std::move(alternatives));
  }

  Result<int> ParseConcat() {
    RegexNode concat{.kind = Kind::kConcat};
    while (!in_.AtEnd() && !in_.At('|') && !in_.At(')')) {
      if (in_.Take("\\Q")) {
        RETURN_IF_ERROR(ParseQuoted(&concat.children));
        continue;
      }
      const size_t before = in_.position;
      ASSIGN_OR_RETURN(int atom, ParseAtom());
      if (atom < 0) continue;  // flags only
      ASSIGN_OR_RETURN(atom, ParseRepeats(atom, before));
      concat.children.push_back(atom);
    }
    return AddNode(std::move(concat));
  }

  // \Q...\E; the last character may be repeated.
  Status ParseQuoted(std::vector<int>* children) {
    while (!in_.AtEnd() && !in_.Take("\\E")) {
      ASSIGN_OR_RETURN(const char32_t c, in_.Next());
      children->push_back(AddLiteral(c));
      if (in_.Take("\\E")) {
        ASSIGN_OR_RETURN(children->back(), ParseRepeats(children->back(), in_.position));
        return {};
      }
    }
    return {};
  }

  // Any number of *, +, ?, {n,m} would be an error in RE2: one, and a ? after it that only matters
  // to submatches.
  Result<int> ParseRepeats(int atom, size_t atom_position) {
    int min = 0, max = 0;
    ASSIGN_OR_RETURN(const bool repeated, TakeRepeat(&min, &max));
    if (!repeated) return atom;
    in_.Take("?");
    const size_t position = in_.position;
    int ignored = 0;
    ASSIGN_OR_RETURN(const bool twice, TakeRepeat(&ignored, &ignored));
    if (twice) {
      in_.position = position;
      return in_.Error("bad repetition operator");
    }
    if (max > kMaxRepeat || min > kMaxRepeat || (max >= 0 && min > max)) {
      in_.position = atom_position;
      return in_.Error("bad repetition count");
    }
    return AddNode({.kind = Kind::kRepeat, .children = {atom}, .min = min, .max = max});
  }

  Result<bool> TakeRepeat(int* min, int* max) {
    *min = 0;
    *max = RegexNode::kUnbounded;
    if (in_.Take("*")) return true;
    if (in_.Take("+")) {
      *min = 1;
      return true;
    }
    if (in_.Take("?")) {
      *max = 1;
      return true;
    }
    return TakeCounts(min, max);
  }

  // {n}, {n,} or {n,m}; any other { is a literal.
  bool TakeCounts(int* min, int* max) {
    const size_t start = in_.position;
    if (in_.Take("{") && TakeNumber(min)) {
      *max = *min;
      if (in_.Take(",") && !TakeNumber(max)) *max = RegexNode::kUnbounded;
      if (in_.Take("}")) return true;
    }
    in_.position = start;
    return false;
  }

  bool TakeNumber(int* out) {
    const size_t start = in_.position;
    int value = 0;
    while (!in_.AtEnd() && in_.text[in_.position] >= '0' && in_.text[in_.position] <= '9') {
      value = std::min(value * 10 + (in_.text[in_.position++] - '0'), kMaxRepeat + 1);
    }
    if (in_.position > start) *out = value;
    return in_.position > start;
  }

  // One item; -1 for a group that only sets flags.
  Result<int> ParseAtom() {
    if (in_.Take("(")) return ParseGroup();
    if (in_.At('[')) {
      ASSIGN_OR_RETURN(CodePointSet set, ParseBrackets(&in_, flags_));
      return AddSet(std::move(set));
    }
    if (in_.Take("^"))
      return AddAssertion(flags_.multi_line ? Assertion::kLineBegin : Assertion::kTextBegin);
    if (in_.Take("$"))
      return AddAssertion(flags_.multi_line ? Assertion::kLineEnd : Assertion::kTextEnd);
    if (in_.Take(".")) return AddSet(flags_.dot_newline ? Negated({}) : Negated({{'\n', '\n'}}));
    if (in_.At('*') || in_.At('+') || in_.At('?'))
      return in_.Error("no argument for repetition operator");
    if (in_.At('\\')) return ParseEscape();
    ASSIGN_OR_RETURN(const char32_t c, in_.Next());
    return AddLiteral(c);
  }

  Result<int> ParseEscape() {
    if (in_.Take("\\A")) return AddAssertion(Assertion::kTextBegin);
    if (in_.Take("\\z")) return AddAssertion(Assertion::kTextEnd);
    if (in_.Take("\\b")) return AddAssertion(Assertion::kWordBoundary);
    if (in_.Take("\\B")) return AddAssertion(Assertion::kNotWordBoundary);
    if (in_.Take("\\E")) return AddNode({});
    CodePointSet set;
    if (TakePerlSet(&in_, &set)) return AddSet(std::move(set));
    ASSIGN_OR_RETURN(const bool unicode, TakeUnicodeSet(&in_, flags_, &set));
    if (unicode) return AddSet(std::move(set));
    ASSIGN_OR_RETURN(const char32_t c, ParseEscapedCharacter(&in_));
    return AddLiteral(c);
  }

  // Behind the opening parenthesis.
  Result<int> ParseGroup() {
    const RegexFlags outer = flags_;
    if (in_.Take("?P<") || in_.Take("?<")) {
      RETURN_IF_ERROR(SkipName());
    } else if (in_.Take("?")) {
      ASSIGN_OR_RETURN(const bool flags_only, ParseFlags());
      if (flags_only) return -1;  // they last to the end of the enclosing group
    }
    ASSIGN_OR_RETURN(const int inside, ParseAlternatives());
    if (!in_.Take(")")) return in_.Error("missing )");
    flags_ = outer;
    return inside;
  }

  Status SkipName() {
    const size_t start = in_.position;
    while (!in_.AtEnd() && !in_.At('>')) ++in_.position;
    if (in_.position == start || !in_.Take(">")) return in_.Error("invalid group name");
    return {};
  }

  // "i-s:" or "i-s)"; true for the latter.
  Result<bool> ParseFlags() {
    bool value = true;
    for (; !in_.AtEnd(); ++in_.position) {
      switch (in_.text[in_.position]) {
        case 'i': flags_.fold = value; break;
        case 'm': flags_.multi_line = value; break;
        case 's': flags_.dot_newline = value; break;
        case 'U': break;  // which match is preferred does not matter to a whole match
        case '-':
          if (!value) return in_.Error("invalid group");
          value = false;
          break;
        case ':': ++in_.position; return false;
        case ')': ++in_.position; return true;
        default: return in_.Error("invalid group");
      }
    }
    return in_.Error("missing )");
  }

  RegexInput in_;
  RegexFlags flags_;
  RegexTree tree_;
  int depth_ = 0;
};

}  // namespace

Result<RegexTree> ParseRegex(const std::string& pattern) { return Parser(pattern).Run(); }

}  // namespace caesura
