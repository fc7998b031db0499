// SPDX-License-Identifier: Apache-2.0
#include <cstdio>

#include "core/base/build_facts.h"
#include "training/command/command.h"

namespace caesura::command {

std::string VersionText() {
  std::string out;
  for (const auto& [name, value] : BuildFacts()) {
    out += (out.empty() ? "" : "\n") + name +
           std::string(name.size() < 17 ? 17 - name.size() : 1, ' ') + value;
  }
  return out;
}

int Report(const Status& status) {
  std::fprintf(stderr, "caesura: %s\n", status.message().c_str());
  return status.code() == StatusCode::kCancelled ? kStopped : kFailed;
}

void WarnOldSpelling(const std::string& old, const std::string& now) {
  std::fprintf(
      stderr,
      "caesura: warning: '%s' is now written '%s'; the old spelling goes with version 0.2\n",
      old.c_str(), now.c_str());
}

}  // namespace caesura::command
