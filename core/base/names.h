// SPDX-License-Identifier: Apache-2.0
// Names that options give: patterns, and what is said of names that do not exist.
#ifndef CAESURA_CORE_BASE_NAMES_H_
#define CAESURA_CORE_BASE_NAMES_H_

#include <string>
#include <vector>

#include "core/base/status.h"

namespace caesura {

// '*' in `pattern` matches any run of characters.
bool MatchesName(const std::string& pattern, const std::string& name);

// "'a', 'b' and 7 more"
std::string ListedNames(const std::vector<std::string>& names, size_t most = 10);

// Fails with kInvalidArgument when patterns match none of the names in `known`: "PROBLEM 'a'
// (nearest: 'b'), 'c'" lists them all, each with the nearest known ones. A pattern that matches the
// empty name stands for all names that there are, and may match none.
Status CheckNames(const std::string& problem, const std::vector<std::string>& patterns,
                  const std::vector<std::string>& known);

}  // namespace caesura

#endif  // CAESURA_CORE_BASE_NAMES_H_
