// SPDX-License-Identifier: Apache-2.0
#ifndef CAESURA_TESTS_CORE_DISTRIBUTED_RANK_THREADS_H_
#define CAESURA_TESTS_CORE_DISTRIBUTED_RANK_THREADS_H_

#include <functional>
#include <thread>
#include <vector>

#include "core/distributed/communicator.h"

namespace caesura::testing {

// Runs `body` on each of `size` ranks, a thread each.
inline void RunRanks(int size, const std::function<void(Communicator&)>& body) {
  auto ranks = LocalCommunicators(size);
  std::vector<std::thread> threads;
  for (auto& rank : ranks) threads.emplace_back([&body, &rank] { body(*rank); });
  for (std::thread& thread : threads) thread.join();
}

}  // namespace caesura::testing

#endif  // CAESURA_TESTS_CORE_DISTRIBUTED_RANK_THREADS_H_
