// SPDX-License-Identifier: Apache-2.0
#include "core/providers/counting_memory.h"

#include <sys/mman.h>

#include <algorithm>
#include <cstring>

namespace caesura {
namespace {

constexpr size_t kPage = size_t{1} << 16;

size_t RoundUp(size_t bytes, size_t unit) { return (bytes + unit - 1) / unit * unit; }

}  // namespace

CountingDevice::Memory::Memory(Device device, size_t bytes, bool close_pages)
    : device_(device), reserved_(RoundUp(bytes, kPage)), close_pages_(close_pages) {
  void* base =
      mmap(nullptr, reserved_, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (base == MAP_FAILED) return;  // nothing can be allocated
  base_ = static_cast<char*>(base);
  free_[0] = bytes;
}

CountingDevice::Memory::~Memory() {
  if (base_ != nullptr) munmap(base_, reserved_);
}

Result<std::shared_ptr<Buffer>> CountingDevice::Memory::Allocate(size_t size) {
  std::lock_guard<std::mutex> lock(mutex_);
  const size_t bytes = RoundUp(std::max<size_t>(size, 1), kBufferAlignment);
  auto block = std::find_if(free_.begin(), free_.end(),
                            [&](const auto& range) { return range.second >= bytes; });
  if (block == free_.end()) {
    return ProviderFailure("the counting device has no " + std::to_string(size) + " bytes left");
  }
  const size_t offset = block->first;
  if (const size_t end = RoundUp(offset + bytes, kPage); end > peak_) {
    const bool open = !close_pages_ || open_ > 0;
    if (open && mprotect(base_ + peak_, end - peak_, PROT_READ | PROT_WRITE) != 0) {
      return ProviderFailure("the counting device cannot open its pages");
    }
    peak_ = end;
  }
  const size_t rest = block->second - bytes;
  free_.erase(block);
  if (rest > 0) free_[offset + bytes] = rest;
  return std::make_shared<Buffer>(
      base_ + offset, size, device_,
      [self = shared_from_this(), offset, bytes](void*) { self->Free(offset, bytes); });
}

void CountingDevice::Memory::Free(size_t offset, size_t bytes) {
  std::lock_guard<std::mutex> lock(mutex_);
  auto block = free_.emplace(offset, bytes).first;
  auto next = std::next(block);
  if (next != free_.end() && offset + bytes == next->first) {
    block->second += next->second;
    free_.erase(next);
  }
  if (block == free_.begin()) return;
  auto before = std::prev(block);
  if (before->first + before->second != offset) return;
  before->second += block->second;
  free_.erase(block);
}

void CountingDevice::Memory::Open(int change) {
  if (!close_pages_) return;
  std::lock_guard<std::mutex> lock(mutex_);
  const bool was = open_ > 0;
  open_ += change;
  if (was == (open_ > 0) || peak_ == 0) return;
  mprotect(base_, peak_, open_ > 0 ? PROT_READ | PROT_WRITE : PROT_NONE);
}

Status CountingDevice::Memory::Copy(CopyKind kind, void* to, const void* from, size_t bytes) {
  if (Owns(to) != (kind != CopyKind::kToHost) || Owns(from) != (kind != CopyKind::kToDevice)) {
    return Internal("a copy " +
                    std::string(kind == CopyKind::kToHost ? "to the host" : "to the device") +
                    " has an address on the wrong side");
  }
  WithCounts([&](DeviceCounts& counts) {
    if (kind == CopyKind::kWithin) {
      ++counts.copies_within;
    } else {
      ++(kind == CopyKind::kToHost ? counts.copies_to_host : counts.copies_to_device);
      (kind == CopyKind::kToHost ? counts.bytes_to_host : counts.bytes_to_device) += bytes;
    }
  });
  const Access access(*this);
  if (bytes > 0) std::memcpy(to, from, bytes);
  return {};
}

}  // namespace caesura
