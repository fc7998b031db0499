// SPDX-License-Identifier: Apache-2.0
#include "core/base/names.h"

#include <algorithm>
#include <numeric>
#include <utility>

namespace caesura {
namespace {

// Counts the characters to put in, take out or change.
size_t EditDistance(const std::string& a, const std::string& b) {
  std::vector<size_t> row(b.size() + 1);
  std::iota(row.begin(), row.end(), size_t{0});
  for (size_t i = 0; i < a.size(); ++i) {
    size_t diagonal = std::exchange(row[0], i + 1);
    for (size_t j = 0; j < b.size(); ++j) {
      const size_t changed = diagonal + (a[i] != b[j] ? 1 : 0);
      diagonal = std::exchange(row[j + 1], std::min({changed, row[j] + 1, row[j + 1] + 1}));
    }
  }
  return row[b.size()];
}

// " (nearest: 'a', 'b')": the known names that differ least, where they differ little.
std::string Nearest(const std::string& name, const std::vector<std::string>& known) {
  constexpr size_t kShown = 3;
  std::vector<std::pair<size_t, std::string>> ranked;
  for (const std::string& candidate : known) {
    const size_t distance = EditDistance(name, candidate);
    const bool holds = !name.empty() && candidate.find(name) != std::string::npos;
    if (holds || distance <= std::max<size_t>(2, name.size() / 3))
      ranked.emplace_back(distance, candidate);
  }
  std::stable_sort(ranked.begin(), ranked.end(),
                   [](const auto& a, const auto& b) { return a.first < b.first; });
  ranked.resize(std::min(ranked.size(), kShown));
  std::vector<std::string> names;
  for (auto& [distance, candidate] : ranked) names.push_back(std::move(candidate));
  return names.empty() ? "" : " (nearest: " + ListedNames(names) + ")";
}

}  // namespace

bool MatchesName(const std::string& pattern, const std::string& name) {
  size_t p = 0, n = 0, star = std::string::npos, from = 0;
  while (n < name.size()) {
    if (p < pattern.size() && pattern[p] == '*') {
      star = p++;
      from = n;
    } else if (p < pattern.size() && pattern[p] == name[n]) {
      ++p;
      ++n;
    } else if (star != std::string::npos) {
      p = star + 1;  // let the star take one character more
      n = ++from;
    } else {
      return false;
    }
  }
  while (p < pattern.size() && pattern[p] == '*') ++p;
  return p == pattern.size();
}

std::string ListedNames(const std::vector<std::string>& names, size_t most) {
  std::string text;
  for (size_t i = 0; i < std::min(names.size(), most); ++i)
    text += (i == 0 ? "'" : ", '") + names[i] + "'";
  if (names.size() > most) text += " and " + std::to_string(names.size() - most) + " more";
  return text;
}

Status CheckNames(const std::string& problem, const std::vector<std::string>& patterns,
                  const std::vector<std::string>& known) {
  std::string unknown;
  for (const std::string& pattern : patterns) {
    if (MatchesName(pattern, "")) continue;  // all that there are, and be it none
    if (std::any_of(known.begin(), known.end(),
                    [&](const auto& name) { return MatchesName(pattern, name); }))
      continue;
    unknown += (unknown.empty() ? "'" : ", '") + pattern + "'" + Nearest(pattern, known);
  }
  return unknown.empty() ? Status() : InvalidArgument(problem + " " + unknown);
}

}  // namespace caesura
