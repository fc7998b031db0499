// SPDX-License-Identifier: Apache-2.0
// Threads for asynchronous runs, started as they are needed.
#ifndef CAESURA_CORE_SESSION_RUN_QUEUE_H_
#define CAESURA_CORE_SESSION_RUN_QUEUE_H_

#include <functional>
#include <memory>
#include <thread>
#include <vector>

#include "core/base/status.h"

namespace caesura {

// Runs each piece of work once, on a thread of its own pool. Thread safety: Add and Wait from any
// thread, also from work.
class RunQueue {
 public:
  RunQueue();
  RunQueue(const RunQueue&) = delete;
  RunQueue& operator=(const RunQueue&) = delete;
  // Waits until all work is done. In work, which may destroy the queue, for all other work.
  ~RunQueue();

  // Calls `work` soon, on another thread; at most as many at a time as the machine has cores.
  // kOutOfMemory when there is no memory for it, or no thread.
  Status Add(std::function<void()> work);

  // Until all work is done; in work, until no other is left. Two that wait so for each other wait
  // forever.
  void Wait();

 private:
  struct Shared;  // the threads hold it too: the one that destroys the queue outlives it
  bool IsWorker() const;

  const std::shared_ptr<Shared> shared_;
  std::vector<std::thread> threads_;  // changed under the mutex of `shared_`
};

}  // namespace caesura

#endif  // CAESURA_CORE_SESSION_RUN_QUEUE_H_
