// SPDX-License-Identifier: Apache-2.0
#include "core/tensor/buffer.h"

#include <cstdlib>
#include <map>
#include <mutex>
#include <new>

namespace caesura {
namespace {

class PlainHostAllocator : public Allocator {
 public:
  Result<std::shared_ptr<Buffer>> Allocate(size_t size) override {
    const size_t rounded = (size + kBufferAlignment - 1) / kBufferAlignment * kBufferAlignment;
    void* data = rounded == 0 && size != 0 ? nullptr : std::aligned_alloc(kBufferAlignment, rounded + kBufferAlignment);
    if (data == nullptr) return OutOfMemory("cannot allocate " + std::to_string(size) + " bytes of host memory");
    return std::make_shared<Buffer>(data, size, Device{}, [](void* p) { std::free(p); });
  }
  Device device() const override { return {}; }
};

// Keeps what is returned in lists by size.
class PooledAllocator : public Allocator, public std::enable_shared_from_this<PooledAllocator> {
 public:
  explicit PooledAllocator(Allocator& source) : source_(source) {}

  Result<std::shared_ptr<Buffer>> Allocate(size_t size) override {
    std::shared_ptr<Buffer> kept;
    {
      std::lock_guard<std::mutex> lock(mutex_);
      auto it = free_.find(size);
      if (it != free_.end()) {
        kept = std::move(it->second);
        free_.erase(it);
      }
    }
    if (kept == nullptr) {
      auto fresh = source_.Allocate(size);
      if (!fresh.ok()) return fresh.status();
      kept = *std::move(fresh);
    }
    void* data = kept->data();
    return std::make_shared<Buffer>(data, size, device(), [self = weak_from_this(), kept](void*) {
      if (auto pool = self.lock()) pool->Return(kept);
    });
  }
  Device device() const override { return source_.device(); }

 private:
  void Return(const std::shared_ptr<Buffer>& buffer) {
    std::lock_guard<std::mutex> lock(mutex_);
    free_.emplace(buffer->size(), buffer);
  }

  Allocator& source_;
  std::mutex mutex_;
  std::multimap<size_t, std::shared_ptr<Buffer>> free_;
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

std::shared_ptr<Allocator> MakePooledAllocator(Allocator& source) { return std::make_shared<PooledAllocator>(source); }

std::shared_ptr<Buffer> AllocateStrings(size_t count) {
  auto* strings = new std::string[count + 1];
  return std::make_shared<Buffer>(strings, count * sizeof(std::string), Device{},
                                  [](void* p) { delete[] static_cast<std::string*>(p); });
}

}  // namespace caesura
