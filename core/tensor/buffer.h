// SPDX-License-Identifier: Apache-2.0
// Bytes on a device, who owns them, and where new ones come from.
#ifndef CAESURA_CORE_TENSOR_BUFFER_H_
#define CAESURA_CORE_TENSOR_BUFFER_H_

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>

#include "core/base/status.h"

namespace caesura {

// The kind of a device. kOther is a device of a plug-in or of PyTorch.
enum class DeviceType : uint8_t { kCpu, kCuda, kOther };

// One device: its kind and its number among those of that kind. The default is the host.
struct Device {
  DeviceType type = DeviceType::kCpu;
  int16_t index = 0;
  bool is_host() const { return type == DeviceType::kCpu; }
  bool operator==(const Device& o) const { return type == o.type && index == o.index; }
  bool operator!=(const Device& o) const { return !(*this == o); }
  std::string ToString() const;  // "cpu", "cuda:0"
};

// Buffers are aligned to this, and every offset that a memory plan gives out is a multiple of it.
inline constexpr size_t kBufferAlignment = 64;
// The same on devices other than the host.
inline constexpr size_t kDeviceAlignment = 256;

// A range of bytes. Freed by the deleter when the last shared_ptr goes, on whichever thread that
// is.
class Buffer {
 public:
  using Deleter = std::function<void(void*)>;
  Buffer(void* data, size_t size, Device device, Deleter deleter)
      : data_(data), size_(size), device_(device), deleter_(std::move(deleter)) {}
  ~Buffer() {
    if (deleter_) deleter_(data_);
  }
  Buffer(const Buffer&) = delete;
  Buffer& operator=(const Buffer&) = delete;

  void* data() const { return data_; }
  size_t size() const { return size_; }
  Device device() const { return device_; }
  // False for a view of somebody else's bytes.
  bool owns_memory() const { return static_cast<bool>(deleter_); }

 private:
  void* data_;
  size_t size_;
  Device device_;
  Deleter deleter_;
};

// Where buffers of a device come from. Thread safety: all methods may be called from any thread.
class Allocator {
 public:
  virtual ~Allocator() = default;
  // `size` bytes aligned to kBufferAlignment, not initialised. Fails with kOutOfMemory (host) or
  // kProviderFailure (device). size 0 gives a valid empty buffer.
  virtual Result<std::shared_ptr<Buffer>> Allocate(size_t size) = 0;
  virtual Device device() const = 0;
};

// Plain host memory. Never destroyed.
Allocator& HostAllocator();

// Host memory that reads as zero. Large memory is not touched: whoever writes first, on however
// many threads, meets fresh pages. Fails with kOutOfMemory.
Result<std::shared_ptr<Buffer>> AllocateZeros(size_t size);

// Host memory that is kept on return and handed out again by size, so that steps that allocate
// about the same sizes touch no fresh pages (a buffer takes up to an eighth more than it says);
// never more of it idle than was in use at the peak. Buffers may outlive the allocator.
std::shared_ptr<Allocator> MakePooledAllocator(Allocator& source);

// A host array of `count` default-constructed strings.
std::shared_ptr<Buffer> AllocateStrings(size_t count);

}  // namespace caesura

#endif  // CAESURA_CORE_TENSOR_BUFFER_H_
