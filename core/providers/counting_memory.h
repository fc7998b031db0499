// SPDX-License-Identifier: Apache-2.0
// Private to core/providers: the memory and the counters of a CountingDevice.
#ifndef CAESURA_CORE_PROVIDERS_COUNTING_MEMORY_H_
#define CAESURA_CORE_PROVIDERS_COUNTING_MEMORY_H_

#include <cstdint>
#include <map>
#include <memory>
#include <mutex>

#include "core/providers/counting_provider.h"

namespace caesura {

// One range of addresses, given out first fit. Buffers hold the memory alive.
// Thread safety: all methods from any thread.
class CountingDevice::Memory : public Allocator, public std::enable_shared_from_this<Memory> {
 public:
  Memory(Device device, size_t bytes, bool close_pages);
  ~Memory() override;

  Result<std::shared_ptr<Buffer>> Allocate(size_t size) override;
  Device device() const override { return device_; }
  bool Owns(const void* address) const { return address >= base_ && address < base_ + reserved_; }

  // Pages are open while at least one of these lives.
  class Access {
   public:
    explicit Access(Memory& memory) : memory_(memory) { memory_.Open(1); }
    ~Access() { memory_.Open(-1); }
    Access(const Access&) = delete;
    Access& operator=(const Access&) = delete;

   private:
    Memory& memory_;
  };

  Status Copy(CopyKind kind, void* to, const void* from, size_t bytes);
  // Calls fn(counts) alone.
  template <typename Fn>
  auto WithCounts(const Fn& fn) {
    std::lock_guard<std::mutex> lock(mutex_);
    return fn(counts_);
  }

 private:
  void Open(int change);
  void Free(size_t offset, size_t bytes);

  const Device device_;
  const size_t reserved_;  // addresses, not bytes
  const bool close_pages_;
  char* base_ = nullptr;
  std::mutex mutex_;
  std::map<size_t, size_t> free_;  // offset: bytes; neighbours are one
  size_t peak_ = 0;                // bytes from the base that were ever in use, in whole pages
  int open_ = 0;
  DeviceCounts counts_;
};

}  // namespace caesura

#endif  // CAESURA_CORE_PROVIDERS_COUNTING_MEMORY_H_
