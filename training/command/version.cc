// SPDX-License-Identifier: Apache-2.0
#include <cstdio>

#include "core/base/build_facts.h"
#include "training/command/command.h"

namespace caesura::command {

std::string VersionText() {
  std::string out;
  for (const auto& [name, value] : BuildFacts()) {
    out += (out.empty() ? "" : "\n") + name + std::string(name.size() < 17 ? 17 - name.size() : 1, ' ') + value;
  }
  return out;
}

int Report(const Status& status) {
  std::fprintf(stderr, "caesura: %s\n", status.message().c_str());
  return kFailed;
}

}  // namespace caesura::command
