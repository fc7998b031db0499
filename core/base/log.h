// SPDX-License-Identifier: Apache-2.0
// One line per message on stderr. Warnings always; the rest by CAESURA_VERBOSE (core/base/env.h).
// Thread safety: a message is written in one call, so lines of different threads do not mix.
#ifndef CAESURA_CORE_BASE_LOG_H_
#define CAESURA_CORE_BASE_LOG_H_

#include <string>

namespace caesura {

void LogWarning(const std::string& message);
// Printed when CAESURA_VERBOSE >= level.
void LogVerbose(int level, const std::string& message);

}  // namespace caesura

#endif  // CAESURA_CORE_BASE_LOG_H_
