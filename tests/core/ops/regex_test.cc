// SPDX-License-Identifier: Apache-2.0
#include "core/ops/text/regex.h"

#include <gtest/gtest.h>

namespace caesura {
namespace {

bool Matches(const std::string& pattern, const std::string& text) {
  return Regex::Compile(pattern).value().FullMatch(text);
}

TEST(Regex, MatchesWholeTexts) {
  const struct {
    const char* pattern;
    const char* text;
    bool expected;
  } cases[] = {
      {"", "", true},
      {"", "a", false},
      {"abc", "abc", true},
      {"abc", "abcd", false},
      {"a|bc|", "bc", true},
      {"a|bc|", "", true},
      {"a*b+c?", "aabb", true},
      {"a*b+c?", "aac", false},
      {"(ab){2,3}", "ababab", true},
      {"(ab){2,3}", "ab", false},
      {"a{2,}", "aaaa", true},
      {"a{2}", "aaa", false},
      {"a{,2}", "a{,2}", true},  // no repetition without a lower bound
      {"(a*)*", "aaa", true},
      {"x*?y", "xxy", true},
      {".", "\n", false},
      {"(?s).", "\n", true},
      {".", "é", true},
      {"[^a-c]+", "xyz\n", true},
      {"[]a-]+", "-]a", true},
      {"[[:alpha:]_]+", "Ab_", true},
      {"[^[:^digit:]]", "7", true},
      {"\\d\\D\\w\\W\\s\\S", "1a_- x", true},
      {"\\x41\\x{e9}\\101\\.", "AéA.", true},
      {"\\Qa.b*\\E+", "a.b***", true},
      {"(?i)StraSSe", "sTRAssE", true},
      {"a(?i:B)c", "abc", true},
      {"a(?i:B)c", "aBC", false},
      {"(?i)ÄΩж", "äωЖ", true},
      {"(?P<user>\\w+)@(?:\\w+\\.)+com", "name@mail.example.com", true},
      {"^a$", "a", true},
      {"(?m)a$\\n^b", "a\nb", true},
      {"a$\\n^b", "a\nb", false},
      {"\\bab\\b c", "ab c", true},
      {"a\\Bb", "ab", true},
      {"a\\bb", "ab", false},
  };
  for (const auto& c : cases)
    EXPECT_EQ(Matches(c.pattern, c.text), c.expected) << c.pattern << " on " << c.text;
}

// By RE2's page of its syntax.
TEST(Regex, KnowsUnicodeCategories) {
  EXPECT_TRUE(Matches("\\pL+", "aßЖ語"));
  EXPECT_FALSE(Matches("\\pL+", "a1"));
  EXPECT_TRUE(Matches("\\p{Lu}\\p{Ll}\\p{Nd}\\PL", "Ωω٣-"));
  EXPECT_FALSE(Matches("\\p{Lu}", "ω"));
  EXPECT_TRUE(Matches("(?i)\\p{Lu}", "ω"));
  EXPECT_TRUE(Matches("[\\p{Lu}\\pN]+", "A1Ⅷ"));
  EXPECT_TRUE(Matches("\\p{^L}\\P{^L}", "1a"));
  EXPECT_TRUE(Matches("\\p{Any}", "𐐀"));
  EXPECT_TRUE(Matches("(?i)k", "\u212A"));  // the sign of kelvin
}

TEST(Regex, RefusesWhatRe2Refuses) {
  for (const char* pattern : {"(",        ")",       "[a",     "*a",   "a**",
                              "a*+",      "a{1001}", "a{3,2}", "\\1",  "\\8",
                              "\\",       "\\xg",    "[b-a]",  "(?z)", "(?P<>a)",
                              "[[:no:]]", "\xff",    "\\Z",    "(?i",  "((a{1000}){1000}){1000}"}) {
    EXPECT_EQ(Regex::Compile(pattern).status().code(), StatusCode::kInvalidArgument) << pattern;
  }
  EXPECT_EQ(Regex::Compile(std::string(5000, '(') + std::string(5000, ')')).status().code(),
            StatusCode::kInvalidArgument);
  EXPECT_EQ(Regex::Compile("\\p{L").status().code(), StatusCode::kInvalidArgument);
  for (const char* pattern : {"\\p{Greek}", "\\pX", "\\p{}", "\\C"})
    EXPECT_EQ(Regex::Compile(pattern).status().code(), StatusCode::kUnsupported) << pattern;
}

// Patterns on which backtracking takes exponential time.
TEST(Regex, TakesLinearTime) {
  const std::string text(20000, 'a');
  EXPECT_FALSE(Matches("(a|a)*b", text));
  EXPECT_FALSE(Matches("(a*)*(a*)*b", text));
  EXPECT_TRUE(Matches("(a?){30}a{30}", std::string(30, 'a')));
}

}  // namespace
}  // namespace caesura
