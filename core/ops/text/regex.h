// SPDX-License-Identifier: Apache-2.0
// Regular expressions in RE2's syntax (github.com/google/re2/wiki/Syntax), for whole-text matches.
// The time is bounded by pattern size times text size, whatever the pattern: all states of the
// automaton advance together (Thompson, 1968). Not supported: scripts (\p{Greek}) and \C.
//
// RE2 itself is not linked: that of Debian 13 brings 35 libraries of Abseil into a wheel.
#ifndef CAESURA_CORE_OPS_TEXT_REGEX_H_
#define CAESURA_CORE_OPS_TEXT_REGEX_H_

#include <cstdint>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "core/base/status.h"

namespace caesura {

// Code points in sorted, disjoint, closed ranges.
using CodePointSet = std::vector<std::pair<char32_t, char32_t>>;

// A pattern as a tree in a flat array.
struct RegexNode {
  enum class Kind : uint8_t { kEmpty, kSet, kConcat, kAlternate, kRepeat, kAssert };
  enum class Assertion : uint8_t {
    kTextBegin,
    kTextEnd,
    kLineBegin,
    kLineEnd,
    kWordBoundary,
    kNotWordBoundary
  };
  static constexpr int kUnbounded = -1;

  Kind kind = Kind::kEmpty;
  Assertion assertion = Assertion::kTextBegin;
  CodePointSet set = {};
  std::vector<int> children = {};
  int min = 0, max = 0;  // kRepeat
};
struct RegexTree {
  std::vector<RegexNode> nodes;
  int root = -1;
};

// Fails with kInvalidArgument where RE2 would, and with kUnsupported for what is not supported.
Result<RegexTree> ParseRegex(const std::string& pattern);

// Thread safety: immutable.
class Regex {
 public:
  // Also fails when the pattern stands for more than kMaxInstructions states.
  static Result<Regex> Compile(const std::string& pattern);
  bool FullMatch(std::string_view text) const;

  static constexpr size_t kMaxInstructions = 100000;

 private:
  struct Instruction {
    enum class Op : uint8_t { kSet, kSplit, kAssert, kMatch };
    Op op;
    RegexNode::Assertion assertion = {};
    int set = -1;          // kSet
    int next = -1;         // where it goes on
    int alternative = -1;  // kSplit: or there
  };
  class Compiler;
  class Matcher;

  std::vector<Instruction> program_;
  std::vector<CodePointSet> sets_;
  int start_ = 0;
};

}  // namespace caesura

#endif  // CAESURA_CORE_OPS_TEXT_REGEX_H_
