// SPDX-License-Identifier: Apache-2.0
// Threads for asynchronous runs, started as they are needed.
#ifndef CAESURA_CORE_SESSION_RUN_QUEUE_H_
#define CAESURA_CORE_SESSION_RUN_QUEUE_H_

#include <condition_variable>
#include <deque>
#include <functional>
#include <mutex>
#include <thread>
#include <vector>

#include "core/base/status.h"

namespace caesura {

// Thread safety: Add from any thread, also from work.
class RunQueue {
 public:
  RunQueue() = default;
  RunQueue(const RunQueue&) = delete;
  RunQueue& operator=(const RunQueue&) = delete;
  // Waits until all work is done.
  ~RunQueue();

  // Calls `work` soon, on another thread; at most as many at a time as the machine has cores. kOutOfMemory when there is
  // no memory for it, or no thread.
  Status Add(std::function<void()> work);

 private:
  void Work();

  std::mutex mutex_;
  std::condition_variable changed_;
  std::deque<std::function<void()>> waiting_;
  std::vector<std::thread> threads_;
  size_t idle_ = 0;
  bool ending_ = false;
};

}  // namespace caesura

#endif  // CAESURA_CORE_SESSION_RUN_QUEUE_H_
