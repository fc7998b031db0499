// SPDX-License-Identifier: Apache-2.0
#include "core/tensor/tensor.h"

#include <gtest/gtest.h>
#ifdef __linux__
#include <sys/mman.h>
#include <unistd.h>
#endif

#include <algorithm>
#include <cstring>
#include <limits>
#include <thread>

namespace caesura {
namespace {

// Freed contents must not show through, whichever way memory of the size is had.
TEST(BufferTest, ZerosAreZeroAndCanBeWritten) {
  for (size_t size :
       {size_t{0}, size_t{1}, size_t{100}, size_t{256} << 10, (size_t{256} << 10) - 64,
        (size_t{2} << 20) - 64, (size_t{3} << 20) - 4096, (size_t{5} << 20) + 12}) {
    for (int turn = 0; turn < 3; ++turn) {
      const std::shared_ptr<Buffer> buffer = AllocateZeros(size).value();
      EXPECT_EQ(buffer->size(), size);
      EXPECT_EQ(reinterpret_cast<uintptr_t>(buffer->data()) % kBufferAlignment, 0u);
      EXPECT_TRUE(buffer->owns_memory());
      const auto* bytes = static_cast<const char*>(buffer->data());
      EXPECT_EQ(std::count(bytes, bytes + size, 0), static_cast<std::ptrdiff_t>(size)) << size;
      if (size > 0) std::memset(buffer->data(), 0x5a, size);
    }
  }
}

#if defined(__linux__) && !defined(__SANITIZE_ADDRESS__)
// So memory does not grow with each new size.
TEST(BufferTest, LargeMemoryGoesBackToTheSystem) {
  for (size_t size : {size_t{300} << 10, size_t{5} << 20}) {
    std::shared_ptr<Buffer> buffer = HostAllocator().Allocate(size).value();
    std::memset(buffer->data(), 1, size);
    const auto page = static_cast<uintptr_t>(sysconf(_SC_PAGESIZE));
    auto* const inside =
        reinterpret_cast<void*>((reinterpret_cast<uintptr_t>(buffer->data()) / page + 2) * page);
    unsigned char resident;
    EXPECT_EQ(mincore(inside, page, &resident), 0);
    buffer.reset();
    EXPECT_NE(mincore(inside, page, &resident), 0) << size;
  }
}
#endif

TEST(BufferTest, ZerosTooLargeAreRefused) {
  for (size_t size : {std::numeric_limits<size_t>::max(), std::numeric_limits<size_t>::max() / 2}) {
    const auto buffer = AllocateZeros(size);
    ASSERT_FALSE(buffer.ok());
    EXPECT_EQ(buffer.status().code(), StatusCode::kOutOfMemory);
  }
}

TEST(BufferTest, ZerosMayBeFreedOnAnotherThread) {
  std::shared_ptr<Buffer> buffer = AllocateZeros(size_t{4} << 20).value();
  std::thread([own = std::move(buffer)]() mutable { own.reset(); }).join();
}

// Counts what it hands out and what is not back yet.
class CountingAllocator : public Allocator {
 public:
  Result<std::shared_ptr<Buffer>> Allocate(size_t size) override {
    ++calls;
    held += size;
    std::shared_ptr<Buffer> memory = HostAllocator().Allocate(size).value();
    return std::make_shared<Buffer>(memory->data(), size, Device{},
                                    [this, size, memory](void*) { held -= size; });
  }
  Device device() const override { return {}; }
  int calls = 0;
  size_t held = 0;
};

TEST(PooledAllocatorTest, SizesThatAreNotInUseAtOnceAreFoundAgain) {
  CountingAllocator source;
  const auto pool = MakePooledAllocator(source);
  for (int turn = 0; turn < 3; ++turn) {
    for (size_t size : {8192, 3072, 1024}) ASSERT_TRUE(pool->Allocate(size).ok());
    EXPECT_EQ(source.calls, 3) << turn;
  }
}

TEST(PooledAllocatorTest, ServesRequestsOfAtLeastHalfTheSize) {
  CountingAllocator source;
  const auto pool = MakePooledAllocator(source);
  for (size_t size : {8192, 4096}) EXPECT_EQ(pool->Allocate(size).value()->size(), size);
  EXPECT_EQ(source.calls, 1);
  ASSERT_TRUE(pool->Allocate(3072).ok());
  EXPECT_EQ(source.calls, 2);
}

TEST(PooledAllocatorTest, HoldsAtMostHalfMoreThanThePeak) {
  CountingAllocator source;
  const auto pool = MakePooledAllocator(source);
  for (size_t size = 1 << 12; size < 1 << 16; size *= 3) {  // none serves another
    ASSERT_TRUE(pool->Allocate(size).ok());
    EXPECT_LE(source.held, size + size / 2);
  }
}

}  // namespace
}  // namespace caesura
