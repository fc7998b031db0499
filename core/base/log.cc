// SPDX-License-Identifier: Apache-2.0
#include "core/base/log.h"

#include <cstdio>
#include <mutex>

#include "core/base/env.h"

namespace caesura {
namespace {

struct Lost {
  std::mutex mutex;
  std::map<std::string, std::string> parts;
};

Lost& TheLost() {
  static auto* const lost = new Lost;  // threads may warn while the process ends
  return *lost;
}

}  // namespace

void LogWarning(const std::string& message) {
  const std::string line = "caesura: warning: " + message + "\n";
  std::fwrite(line.data(), 1, line.size(), stderr);
}

void LogLost(const std::string& part, const std::string& why_and_what_to_do) {
  Lost& lost = TheLost();
  {
    std::lock_guard<std::mutex> lock(lost.mutex);
    if (!lost.parts.emplace(part, why_and_what_to_do).second) return;
  }
  LogWarning(part + " is not used: " + why_and_what_to_do);
}

std::map<std::string, std::string> LostParts() {
  Lost& lost = TheLost();
  std::lock_guard<std::mutex> lock(lost.mutex);
  return lost.parts;
}

void LogVerbose(int level, const std::string& message) {
  if (env::Verbosity() < level) return;
  const std::string line = "caesura: " + message + "\n";
  std::fwrite(line.data(), 1, line.size(), stderr);
}

}  // namespace caesura
