// SPDX-License-Identifier: Apache-2.0
#include "core/base/log.h"

#include <cstdio>

#include "core/base/env.h"

namespace caesura {

void LogWarning(const std::string& message) {
  const std::string line = "caesura: warning: " + message + "\n";
  std::fwrite(line.data(), 1, line.size(), stderr);
}

void LogVerbose(int level, const std::string& message) {
  if (env::Verbosity() < level) return;
  const std::string line = "caesura: " + message + "\n";
  std::fwrite(line.data(), 1, line.size(), stderr);
}

}  // namespace caesura
