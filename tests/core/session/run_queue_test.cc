// SPDX-License-Identifier: Apache-2.0
#include "core/session/run_queue.h"

#include <gtest/gtest.h>

#include <atomic>
#include <future>
#include <set>
#include <mutex>

namespace caesura {
namespace {

TEST(RunQueueTest, EachPieceRunsOnceOnAnotherThread) {
  RunQueue queue;
  std::atomic<int> runs = 0;
  std::mutex mutex;
  std::set<std::thread::id> threads;
  for (int i = 0; i < 200; ++i) {
    ASSERT_TRUE(queue
                    .Add([&] {
                      ++runs;
                      const std::lock_guard<std::mutex> lock(mutex);
                      threads.insert(std::this_thread::get_id());
                    })
                    .ok());
  }
  queue.Wait();
  EXPECT_EQ(runs, 200);
  EXPECT_EQ(threads.count(std::this_thread::get_id()), 0u);
  EXPECT_LE(threads.size(), std::max(1u, std::thread::hardware_concurrency()));
}

TEST(RunQueueTest, WaitOnAnEmptyQueueReturns) {
  RunQueue queue;
  queue.Wait();
}

TEST(RunQueueTest, TheEndWaitsForAllWork) {
  std::atomic<int> runs = 0;
  {
    RunQueue queue;
    for (int i = 0; i < 50; ++i) ASSERT_TRUE(queue.Add([&] { ++runs; }).ok());
  }
  EXPECT_EQ(runs, 50);
}

TEST(RunQueueTest, WorkMayAddWorkAndWaitForTheRest) {
  RunQueue queue;
  std::atomic<int> inner = 0;
  std::promise<int> seen;
  ASSERT_TRUE(queue
                  .Add([&] {
                    for (int i = 0; i < 3; ++i) EXPECT_TRUE(queue.Add([&] { ++inner; }).ok());
                    // With one core the work below would wait for this thread.
                    if (std::thread::hardware_concurrency() > 1) queue.Wait();
                    seen.set_value(inner);
                  })
                  .ok());
  const int at_the_end_of_wait = seen.get_future().get();
  if (std::thread::hardware_concurrency() > 1) {
    EXPECT_EQ(at_the_end_of_wait, 3);
  }
  queue.Wait();
  EXPECT_EQ(inner, 3);
}

TEST(RunQueueTest, WorkMayDestroyTheQueue) {
  auto queue = std::make_unique<RunQueue>();
  std::promise<void> gone;
  ASSERT_TRUE(queue
                  ->Add([own = &queue, &gone] {
                    own->reset();
                    gone.set_value();
                  })
                  .ok());
  gone.get_future().wait();
  EXPECT_EQ(queue, nullptr);
}

// The work's own objects (a session, say) are gone when the work counts as done.
TEST(RunQueueTest, DoneWorkHoldsNothing) {
  RunQueue queue;
  auto held = std::make_shared<int>(1);
  const std::weak_ptr<int> watch = held;
  ASSERT_TRUE(queue.Add([own = std::move(held)] { EXPECT_EQ(*own, 1); }).ok());
  queue.Wait();
  EXPECT_TRUE(watch.expired());
}

}  // namespace
}  // namespace caesura
