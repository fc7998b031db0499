// SPDX-License-Identifier: Apache-2.0
// The checks that every communicator passes. A back end joins with a function that runs a body on
// each rank of a fresh group, on threads or in processes, and returns when all have ended.
#ifndef CAESURA_TESTS_CORE_DISTRIBUTED_COMMUNICATOR_SUITE_H_
#define CAESURA_TESTS_CORE_DISTRIBUTED_COMMUNICATOR_SUITE_H_

#include <functional>
#include <string>

#include "core/distributed/communicator.h"

namespace caesura::testing {

// The body's result is "" where all went well, otherwise what went wrong.
using RankBody = std::function<std::string(Communicator&)>;

struct RankCheck {
  const char* name;
  RankBody body;
};

// Checks that end with the communicator as good as new.
const std::vector<RankCheck>& RankChecks();

}  // namespace caesura::testing

#endif  // CAESURA_TESTS_CORE_DISTRIBUTED_COMMUNICATOR_SUITE_H_
