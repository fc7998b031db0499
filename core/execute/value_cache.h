// SPDX-License-Identifier: Apache-2.0
// Results that depend on parameters alone (a cast, a transposed weight), kept across runs until the
// version of a parameter moves. One cache belongs to one plan and one ParameterSet.
//
// Thread safety: all methods from any thread. An entry that is replaced stays valid for the runs
// that hold it.
#ifndef CAESURA_CORE_EXECUTE_VALUE_CACHE_H_
#define CAESURA_CORE_EXECUTE_VALUE_CACHE_H_

#include <atomic>
#include <cstdint>
#include <memory>
#include <mutex>
#include <vector>

#include "core/tensor/tensor.h"

namespace caesura {

// Buffers by entry number, each with the parameter version that it was made at.
class ValueCache {
 public:
  explicit ValueCache(int entries) : entries_(entries) {}

  // The buffer of entry i if it was filled at `version`, else null. Counts a hit or a miss.
  std::shared_ptr<Buffer> Find(int i, uint64_t version) {
    std::lock_guard<std::mutex> lock(mutex_);
    Entry& entry = entries_[i];
    const bool hit = entry.buffer != nullptr && entry.version == version;
    ++(hit ? hits_ : misses_);
    return hit ? entry.buffer : nullptr;
  }
  void Put(int i, uint64_t version, std::shared_ptr<Buffer> buffer) {
    std::lock_guard<std::mutex> lock(mutex_);
    entries_[i] = {version, std::move(buffer)};
  }
  void Clear() {
    std::lock_guard<std::mutex> lock(mutex_);
    for (Entry& entry : entries_) entry = {};
  }
  uint64_t hits() const { return hits_; }
  uint64_t misses() const { return misses_; }

 private:
  struct Entry {
    uint64_t version = 0;
    std::shared_ptr<Buffer> buffer;
  };
  std::mutex mutex_;
  std::vector<Entry> entries_;
  std::atomic<uint64_t> hits_{0}, misses_{0};
};

}  // namespace caesura

#endif  // CAESURA_CORE_EXECUTE_VALUE_CACHE_H_
