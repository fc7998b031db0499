// SPDX-License-Identifier: Apache-2.0
#include "core/distributed/machine.h"

#include <unistd.h>

#include <algorithm>
#include <fstream>
#include <functional>
#include <string>

#include "core/base/status_macros.h"

namespace caesura {

uint64_t ThisMachine() {
  std::string id;
  std::ifstream("/proc/sys/kernel/random/boot_id") >> id;
  if (id.empty()) {
    char name[256] = {};
    gethostname(name, sizeof(name) - 1);
    id = name;
  }
  return std::hash<std::string>{}(id);
}

Result<int> RankOnMachine(Communicator& ranks) {
  const int64_t own[] = {static_cast<int64_t>(ThisMachine())};
  ASSIGN_OR_RETURN(const std::vector<int64_t> all,
                   ranks.Gather(own, Clock::now() + ranks.timeout()));
  return static_cast<int>(std::count(all.begin(), all.begin() + ranks.rank(), own[0]));
}

}  // namespace caesura
