// SPDX-License-Identifier: Apache-2.0
// The communicators' checks for ranks that Python has started: step_ranks_test.py calls them by
// ctypes in each of them.
#include <cstring>
#include <string>

#include "tests/core/distributed/communicator_suite.h"
#include "torch_bridge/c10d_communicator.h"

// Runs check `i` on the process group; writes what went wrong ("": nothing), ended by a 0.
// Returns 0 where there is no such check.
extern "C" __attribute__((visibility("default"))) int caesura_rank_check(const char* group, int i,
                                                                         char* text, int size) {
  const auto& checks = caesura::testing::RankChecks();
  if (i >= static_cast<int>(checks.size())) return 0;
  auto communicator = caesura::torch::C10dCommunicator(group);
  std::string wrong =
      communicator.ok() ? checks[i].body(**communicator) : communicator.status().ToString();
  if (!wrong.empty()) wrong = std::string(checks[i].name) + ": " + wrong;
  std::strncpy(text, wrong.c_str(), static_cast<size_t>(size) - 1);
  return 1;
}
