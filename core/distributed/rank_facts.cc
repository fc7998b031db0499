// SPDX-License-Identifier: Apache-2.0
#include "core/distributed/rank_facts.h"

#include <algorithm>
#include <cstring>
#include <map>
#include <set>

#include "core/base/status_macros.h"

namespace caesura {
namespace {

constexpr char kEnd = '\0';       // of each name and each value
constexpr size_t kLongest = 160;  // bytes of a value that are said
constexpr int kNamed = 3;         // differences that are said

std::string Join(const RankFacts& facts) {
  std::string text;
  for (const auto& [name, value] : facts) text += name + kEnd + value + kEnd;
  return text;
}

RankFacts Split(const std::string& text) {
  RankFacts facts;
  for (size_t at = 0; at < text.size();) {
    const size_t name_end = text.find(kEnd, at), value_end = text.find(kEnd, name_end + 1);
    if (value_end == std::string::npos) break;
    facts.emplace_back(text.substr(at, name_end - at),
                       text.substr(name_end + 1, value_end - name_end - 1));
    at = value_end + 1;
  }
  return facts;
}

std::string Short(const std::string& value) {
  return value.size() <= kLongest ? value : value.substr(0, kLongest) + "...";
}

using Values = std::map<std::string, std::vector<std::string>>;  // by name

Values ByName(const RankFacts& facts) {
  Values values;
  for (const auto& [name, value] : facts) values[name].push_back(value);
  return values;
}

// "0.1"; of a fact that the rank lacks "nothing".
std::string Said(const Values& values, const std::string& name) {
  const auto found = values.find(name);
  if (found == values.end()) return "nothing";
  std::string text;
  for (const std::string& value : found->second) text += (text.empty() ? "" : ", ") + value;
  return Short(text);
}

}  // namespace

Result<std::vector<std::string>> GatherTexts(Communicator& communicator, const std::string& own,
                                             Clock::time_point deadline) {
  const int64_t size[] = {static_cast<int64_t>(own.size())};
  ASSIGN_OR_RETURN(const std::vector<int64_t> sizes, communicator.Gather(size, deadline));
  const int64_t longest = *std::max_element(sizes.begin(), sizes.end());
  const size_t words = (static_cast<size_t>(longest) + sizeof(int64_t) - 1) / sizeof(int64_t);
  std::vector<int64_t> packed(words);
  if (!own.empty()) std::memcpy(packed.data(), own.data(), own.size());
  ASSIGN_OR_RETURN(const std::vector<int64_t> all, communicator.Gather(packed, deadline));
  std::vector<std::string> texts;
  for (size_t r = 0; r < sizes.size(); ++r) {
    texts.emplace_back(reinterpret_cast<const char*>(all.data() + r * words),
                       static_cast<size_t>(sizes[r]));
  }
  return texts;
}

Result<std::vector<RankFacts>> GatherFacts(Communicator& communicator, const RankFacts& own,
                                           Clock::time_point deadline) {
  ASSIGN_OR_RETURN(const std::vector<std::string> texts,
                   GatherTexts(communicator, Join(own), deadline));
  std::vector<RankFacts> facts;
  for (const std::string& text : texts) facts.push_back(Split(text));
  return facts;
}

std::string DifferencesOfRanks(const std::vector<RankFacts>& by_rank) {
  std::vector<Values> values;
  for (const RankFacts& facts : by_rank) values.push_back(ByName(facts));
  const Values& first = values.front();
  std::vector<std::string> names;  // in the order of the facts
  std::set<std::string> known;
  for (const RankFacts& facts : by_rank) {
    for (const auto& [name, value] : facts) {
      if (known.insert(name).second) names.push_back(name);
    }
  }
  std::string text;
  int count = 0;
  for (const std::string& name : names) {
    const auto differs = std::find_if(values.begin() + 1, values.end(), [&](const Values& other) {
      const auto there = other.find(name);
      if (first.count(name) == 0 || there == other.end())
        return (first.count(name) == 0) != (there == other.end());
      return first.at(name) != there->second;
    });
    if (differs == values.end()) continue;
    if (++count > kNamed) continue;
    text += (text.empty() ? "" : "; ") + name + " is " + Said(first, name) + " on rank 0, " +
            Said(*differs, name) + " on rank " + std::to_string(differs - values.begin());
  }
  if (count > kNamed) text += "; and " + std::to_string(count - kNamed) + " more";
  return text;
}

}  // namespace caesura
