// SPDX-License-Identifier: Apache-2.0
// One rank of the communicators' suite under mpirun.
#include <cstdio>

#include "core/distributed/communicator.h"
#include "tests/core/distributed/communicator_suite.h"

int main() {
  auto communicator = caesura::MpiCommunicator();
  if (!communicator.ok()) {
    std::printf("%s\n", communicator.status().ToString().c_str());
    return communicator.status().code() == caesura::StatusCode::kNotFound ? 77 : 1;
  }
  int failed = 0;
  for (const auto& check : caesura::testing::RankChecks()) {
    const std::string wrong = check.body(**communicator);
    if (wrong.empty()) continue;
    std::printf("rank %d, %s: %s\n", (*communicator)->rank(), check.name, wrong.c_str());
    ++failed;
  }
  return failed == 0 ? 0 : 1;
}
