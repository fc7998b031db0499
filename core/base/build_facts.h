// SPDX-License-Identifier: Apache-2.0
// Facts about this library: its version, what it was built with, what it runs on. For `--version`
// and reports.
#ifndef CAESURA_CORE_BASE_BUILD_FACTS_H_
#define CAESURA_CORE_BASE_BUILD_FACTS_H_

#include <string>
#include <utility>
#include <vector>

namespace caesura {

// "0.1.0"
const char* Version();
// True in a build that is slower for its checks: of CAESURA_ASSERTS, Debug or Sanitize.
bool HasAsserts();
// Name and value, in the order in which to print them.
std::vector<std::pair<std::string, std::string>> BuildFacts();

}  // namespace caesura

#endif  // CAESURA_CORE_BASE_BUILD_FACTS_H_
