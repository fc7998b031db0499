// SPDX-License-Identifier: Apache-2.0
// One line per message on stderr. Warnings always; the rest by CAESURA_VERBOSE (core/base/env.h).
// Thread safety: a message is written in one call, so lines of different threads do not mix.
#ifndef CAESURA_CORE_BASE_LOG_H_
#define CAESURA_CORE_BASE_LOG_H_

#include <map>
#include <string>

namespace caesura {

void LogWarning(const std::string& message);
// Warns, once for each part, that this process does without a part of caesura or of a library:
// why, what that costs, and what the user can do.
void LogLost(const std::string& part, const std::string& why_and_what_to_do);
// All that LogLost was called with, by part.
std::map<std::string, std::string> LostParts();
// Printed when CAESURA_VERBOSE >= level.
void LogVerbose(int level, const std::string& message);

}  // namespace caesura

#endif  // CAESURA_CORE_BASE_LOG_H_
