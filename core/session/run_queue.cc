// SPDX-License-Identifier: Apache-2.0
#include "core/session/run_queue.h"

#include <algorithm>
#include <condition_variable>
#include <deque>
#include <mutex>
#include <new>
#include <system_error>

#include "core/base/wait.h"

namespace caesura {

struct RunQueue::Shared {
  std::mutex mutex;
  std::condition_variable changed;  // more work, or none to come
  std::condition_variable done;     // less work
  std::deque<std::function<void()>> waiting;
  size_t idle = 0, running = 0;
  bool ending = false;

  void Work() {
    std::unique_lock<std::mutex> lock(mutex);
    for (;;) {
      ++idle;
      WaitUntil(changed, lock, [&] { return ending || !waiting.empty(); });
      --idle;
      if (waiting.empty()) return;
      ++running;
      {
        const std::function<void()> work = std::move(waiting.front());
        waiting.pop_front();
        lock.unlock();
        work();
      }  // what the work held goes before it counts as done
      lock.lock();
      --running;
      done.notify_all();
    }
  }
};

RunQueue::RunQueue() : shared_(std::make_shared<Shared>()) {}

RunQueue::~RunQueue() {
  Wait();
  {
    std::lock_guard<std::mutex> lock(shared_->mutex);
    shared_->ending = true;
  }
  shared_->changed.notify_all();
  for (std::thread& thread : threads_) {
    if (thread.get_id() == std::this_thread::get_id()) thread.detach();
    else thread.join();
  }
}

Status RunQueue::Add(std::function<void()> work) try {
  std::lock_guard<std::mutex> lock(shared_->mutex);
  const size_t most = std::max(1u, std::thread::hardware_concurrency());
  if (shared_->waiting.size() >= shared_->idle && threads_.size() < most) {
    threads_.reserve(most);
    try {
      threads_.emplace_back([shared = shared_] { shared->Work(); });
    } catch (const std::system_error&) {
      if (threads_.empty())
        return OutOfMemory("the system gives no thread for an asynchronous run");
    }
  }
  shared_->waiting.push_back(std::move(work));
  shared_->changed.notify_one();
  return {};
} catch (const std::bad_alloc&) {
  return OutOfMemory("memory ran out while an asynchronous run was begun");
}

bool RunQueue::IsWorker() const {
  return std::any_of(threads_.begin(), threads_.end(), [](const std::thread& thread) {
    return thread.get_id() == std::this_thread::get_id();
  });
}

void RunQueue::Wait() {
  std::unique_lock<std::mutex> lock(shared_->mutex);
  const size_t own = IsWorker() ? 1 : 0;
  WaitUntil(shared_->done, lock,
            [&] { return shared_->waiting.empty() && shared_->running <= own; });
}

}  // namespace caesura
