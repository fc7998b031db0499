// SPDX-License-Identifier: Apache-2.0
#include "core/tensor/tensor.h"

#ifdef __linux__
#include <sys/mman.h>
#include <unistd.h>
#endif

#include <algorithm>
#include <bit>
#include <cstdlib>
#include <cstring>
#include <map>
#include <mutex>
#include <new>

#include "core/base/env.h"

namespace caesura {
namespace {

// Where pages are small by default, large memory asks for huge ones: a step's first touch of an
// arena costs a fault a page, and products walk it with fewer misses of the TLB.
constexpr size_t kHugePage = size_t{2} << 20;

// From this size on memory is mapped, so that all of it goes back to the system when it is freed.
// malloc would keep it in pieces that fit no later size: sizes vary where batches do. The address
// sanitizer watches what malloc gives only.
#if defined(__linux__) && !defined(__SANITIZE_ADDRESS__)
constexpr size_t kMapped = size_t{256} << 10;
#else
constexpr size_t kMapped = SIZE_MAX;
#endif

// Pages that read as zero and were not touched; null where there are none. A huge page begins at
// the start of memory that can hold one.
void* Map(size_t bytes) {
#ifdef __linux__
  const size_t slack = bytes < kHugePage ? 0 : kHugePage;
  void* data = bytes + slack < bytes ? MAP_FAILED
                                     : mmap(nullptr, bytes + slack, PROT_READ | PROT_WRITE,
                                            MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (data == MAP_FAILED) return nullptr;
  auto* begin = static_cast<char*>(data);
  if (slack > 0) {
    const auto page = static_cast<size_t>(sysconf(_SC_PAGESIZE));
    const size_t head = (kHugePage - reinterpret_cast<uintptr_t>(data) % kHugePage) % kHugePage;
    const size_t end = (head + bytes + page - 1) / page * page;
    if (head > 0) munmap(begin, head);
    if (end < bytes + slack) munmap(begin + end, bytes + slack - end);
    begin += head;
  }
  madvise(begin, bytes, MADV_HUGEPAGE);  // a hint: neighbours share huge pages
  return begin;
#else
  return nullptr;
#endif
}

void Unmap(void* data, size_t bytes) {
#ifdef __linux__
  munmap(data, bytes);
#endif
}

// Host memory of `size` bytes, with as much after its end as its alignment. `zeros`: that reads as
// zero.
Result<std::shared_ptr<Buffer>> AllocateHost(size_t size, bool zeros) {
  const size_t rounded = (size + kBufferAlignment - 1) / kBufferAlignment * kBufferAlignment;
  const size_t bytes = rounded + kBufferAlignment;
  const bool mapped = bytes >= kMapped;
  void* data = nullptr;
  // More than the system has is not asked for: one that promises it would kill who writes there.
  if (rounded >= size && bytes <= env::MemoryBytes())
    data = mapped ? Map(bytes) : std::aligned_alloc(kBufferAlignment, bytes);
  if (data == nullptr)
    return OutOfMemory("cannot allocate " + std::to_string(size) + " bytes of host memory");
  const auto release = [mapped, bytes](void* p) { mapped ? Unmap(p, bytes) : std::free(p); };
  std::unique_ptr<void, decltype(release)> owner(data, release);  // until the buffer is there
  if (zeros && !mapped) std::memset(data, 0, size);
  auto buffer = std::make_shared<Buffer>(data, size, Device{}, release);
  static_cast<void>(owner.release());
  return buffer;
}

class PlainHostAllocator : public Allocator {
 public:
  Result<std::shared_ptr<Buffer>> Allocate(size_t size) override {
    return AllocateHost(size, /*zeros=*/false);
  }
  Device device() const override { return {}; }
};

// Sizes are rounded up by at most an eighth, so that one that grows a little from step to step
// finds what it left.
size_t SizeClass(size_t size) {
  const size_t step = std::max(kBufferAlignment, std::bit_floor(size) / 8);
  return (size + step - 1) / step * step;
}

// Half more than the peak stays: the sizes of a step's values, which are not in use at once, add up
// to more than it, and the oldest is the next to be asked for.
class PooledAllocator : public Allocator, public std::enable_shared_from_this<PooledAllocator> {
 public:
  explicit PooledAllocator(Allocator& source) : source_(source) {}

  Result<std::shared_ptr<Buffer>> Allocate(size_t size) override {
    const size_t rounded = SizeClass(size);
    if (rounded < size) return OutOfMemory("cannot allocate " + std::to_string(size) + " bytes");
    std::shared_ptr<Buffer> kept = TakeIdle(rounded);
    if (kept == nullptr) {
      auto fresh = source_.Allocate(rounded);
      if (!fresh.ok()) return fresh.status();
      kept = *std::move(fresh);
    }
    void* data = kept->data();
    auto buffer =
        std::make_shared<Buffer>(data, size, device(), [self = weak_from_this(), kept](void*) {
          if (auto pool = self.lock()) pool->Return(kept);
        });
    std::lock_guard<std::mutex> lock(mutex_);
    in_use_ += kept->size();
    peak_ = std::max(peak_, in_use_);
    return buffer;
  }
  Device device() const override { return source_.device(); }

 private:
  struct Idle {
    uint64_t returned;
    std::shared_ptr<Buffer> buffer;
  };

  std::shared_ptr<Buffer> TakeIdle(size_t size) {
    std::lock_guard<std::mutex> lock(mutex_);
    auto it = idle_.lower_bound(size);
    if (it == idle_.end() || it->first / 2 > size) return nullptr;
    std::shared_ptr<Buffer> buffer = std::move(it->second.buffer);
    idle_bytes_ -= it->first;
    idle_.erase(it);
    return buffer;
  }

  // Runs in destructors: where there is no memory to remember the buffer with, it is not kept.
  void Return(const std::shared_ptr<Buffer>& buffer) noexcept {
    std::lock_guard<std::mutex> lock(mutex_);
    in_use_ -= buffer->size();
    try {
      idle_.emplace(buffer->size(), Idle{++clock_, buffer});
    } catch (const std::bad_alloc&) {
      return;
    }
    idle_bytes_ += buffer->size();
    while (in_use_ + idle_bytes_ > peak_ + peak_ / 2 && !idle_.empty()) {
      auto oldest = std::min_element(idle_.begin(), idle_.end(), [](const auto& a, const auto& b) {
        return a.second.returned < b.second.returned;
      });
      idle_bytes_ -= oldest->first;
      idle_.erase(oldest);
    }
  }

  Allocator& source_;
  std::mutex mutex_;
  std::multimap<size_t, Idle> idle_;
  size_t in_use_ = 0, peak_ = 0, idle_bytes_ = 0;
  uint64_t clock_ = 0;
};

}  // namespace

std::string Device::ToString() const {
  switch (type) {
    case DeviceType::kCpu: return "cpu";
    case DeviceType::kCuda: return "cuda:" + std::to_string(index);
    case DeviceType::kOther: return "device:" + std::to_string(index);
  }
  return "?";
}

Allocator& HostAllocator() {
  static auto* allocator = new PlainHostAllocator;
  return *allocator;
}

Result<std::shared_ptr<Buffer>> AllocateZeros(size_t size) {
  return AllocateHost(size, /*zeros=*/true);
}

std::shared_ptr<Allocator> MakePooledAllocator(Allocator& source) {
  return std::make_shared<PooledAllocator>(source);
}

std::shared_ptr<Buffer> AllocateStrings(size_t count) {
  auto owner = std::make_unique<std::string[]>(count + 1);
  auto buffer = std::make_shared<Buffer>(owner.get(), count * sizeof(std::string), Device{},
                                         [](void* p) { delete[] static_cast<std::string*>(p); });
  static_cast<void>(owner.release());
  return buffer;
}

}  // namespace caesura
