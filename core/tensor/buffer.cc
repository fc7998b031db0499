// SPDX-License-Identifier: Apache-2.0
#include "core/tensor/tensor.h"

#ifdef __linux__
#include <sys/mman.h>
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

void* AllocateHost(size_t bytes) {
  if (bytes > env::MemoryBytes())
    return nullptr;  // else a system that promises more than it has would kill who writes there
  if (bytes < kHugePage) return std::aligned_alloc(kBufferAlignment, bytes);
  void* data = nullptr;  // not of aligned_alloc, which wants whole multiples of the alignment
  if (posix_memalign(&data, kHugePage, bytes) != 0) return nullptr;
#ifdef __linux__
  madvise(data, bytes / kHugePage * kHugePage, MADV_HUGEPAGE);  // a hint: it may say no
#endif
  return data;
}

class PlainHostAllocator : public Allocator {
 public:
  Result<std::shared_ptr<Buffer>> Allocate(size_t size) override {
    const size_t rounded = (size + kBufferAlignment - 1) / kBufferAlignment * kBufferAlignment;
    void* data = rounded == 0 && size != 0 ? nullptr : AllocateHost(rounded + kBufferAlignment);
    if (data == nullptr)
      return OutOfMemory("cannot allocate " + std::to_string(size) + " bytes of host memory");
    std::unique_ptr<void, decltype(&std::free)> owner(data,
                                                      &std::free);  // until the buffer is there
    auto buffer = std::make_shared<Buffer>(data, size, Device{}, &std::free);
    static_cast<void>(owner.release());
    return buffer;
  }
  Device device() const override { return {}; }
};

// Sizes are rounded up by at most an eighth, so that one that grows a little from step to step
// finds what it left.
size_t SizeClass(size_t size) {
  const size_t step = std::max(kBufferAlignment, std::bit_floor(size) / 8);
  return (size + step - 1) / step * step;
}

// Keeps what is returned, by size class; never more idle bytes than were in use at the peak.
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
    in_use_ += rounded;
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
    auto it = idle_.find(size);
    if (it == idle_.end()) return nullptr;
    std::shared_ptr<Buffer> buffer = std::move(it->second.buffer);
    idle_.erase(it);
    idle_bytes_ -= size;
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
    while (idle_bytes_ > peak_) {
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
#ifdef __linux__
  constexpr size_t kLarge = size_t{128} << 10;
  if (size >= kLarge) {
    const size_t mapped = size + kBufferAlignment;  // as much after the end as other buffers have
    void* data =
        mapped < size || mapped > env::MemoryBytes()
            ? MAP_FAILED
            : mmap(nullptr, mapped, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (data == MAP_FAILED)
      return OutOfMemory("cannot allocate " + std::to_string(size) + " bytes of host memory");
    auto unmap = [mapped](void* p) { munmap(p, mapped); };
    std::unique_ptr<void, decltype(unmap)> owner(data, unmap);  // until the buffer is there
    madvise(data, mapped, MADV_HUGEPAGE);  // neighbours that were mapped likewise share huge pages
    auto buffer = std::make_shared<Buffer>(data, size, Device{}, unmap);
    static_cast<void>(owner.release());
    return buffer;
  }
#endif
  auto buffer = HostAllocator().Allocate(size);
  if (buffer.ok() && size > 0) std::memset((*buffer)->data(), 0, size);
  return buffer;
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
