// SPDX-License-Identifier: Apache-2.0
#include "core/session/run_queue.h"

#include <algorithm>
#include <new>
#include <system_error>

namespace caesura {

RunQueue::~RunQueue() {
  {
    std::lock_guard<std::mutex> lock(mutex_);
    ending_ = true;
  }
  changed_.notify_all();
  for (std::thread& thread : threads_) thread.join();
}

Status RunQueue::Add(std::function<void()> work) try {
  std::lock_guard<std::mutex> lock(mutex_);
  const size_t most = std::max(1u, std::thread::hardware_concurrency());
  if (waiting_.size() >= idle_ && threads_.size() < most) {
    threads_.reserve(most);
    try {
      threads_.emplace_back([this] { Work(); });
    } catch (const std::system_error&) {
      if (threads_.empty()) return OutOfMemory("the system gives no thread for an asynchronous run");
    }
  }
  waiting_.push_back(std::move(work));
  changed_.notify_one();
  return {};
} catch (const std::bad_alloc&) {
  return OutOfMemory("memory ran out while an asynchronous run was begun");
}

void RunQueue::Work() {
  std::unique_lock<std::mutex> lock(mutex_);
  for (;;) {
    ++idle_;
    changed_.wait(lock, [&] { return ending_ || !waiting_.empty(); });
    --idle_;
    if (waiting_.empty()) return;
    const std::function<void()> work = std::move(waiting_.front());
    waiting_.pop_front();
    lock.unlock();
    work();
    lock.lock();
  }
}

}  // namespace caesura
