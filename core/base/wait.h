// SPDX-License-Identifier: Apache-2.0
// Waiting for a condition.
#ifndef CAESURA_CORE_BASE_WAIT_H_
#define CAESURA_CORE_BASE_WAIT_H_

#include <chrono>
#include <condition_variable>
#include <mutex>

namespace caesura {

// As condition.wait(lock, done). That function would need GCC 12's standard library where the
// program runs, and wheels run on systems with an older one (GLIBCXX_3.4.29).
template <typename Done>
void WaitUntil(std::condition_variable& condition, std::unique_lock<std::mutex>& lock, Done done) {
  while (!condition.wait_for(lock, std::chrono::hours(1), done)) {}
}

}  // namespace caesura

#endif  // CAESURA_CORE_BASE_WAIT_H_
