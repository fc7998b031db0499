// SPDX-License-Identifier: Apache-2.0
// Vector clocks of the host and the streams, and the checker that compares accesses to memory by
// them.
#pragma once
#include <cstdint>
#include <functional>
#include <map>
#include <string>
#include <vector>

namespace standin {

/// The host is one agent: what its threads tell each other is ThreadSanitizer's matter.
inline constexpr int kHost = 0;

class Clock {
 public:
  std::uint32_t operator[](int agent) const {
    const auto i = static_cast<std::size_t>(agent);
    return i < times_.size() ? times_[i] : 0;
  }
  void Join(const Clock& other);
  void Meet(const Clock& other);  // the smaller times
  std::uint32_t Tick(int agent);

 private:
  std::vector<std::uint32_t> times_;
};

/// Bytes from begin to end.
struct Interval {
  std::uintptr_t begin = 0, end = 0;
};
/// Apart, and in order.
using Intervals = std::vector<Interval>;

struct Access {
  bool writes = false;
  int agent = kHost;
  std::uint32_t time = 0;
  std::string what;
  Intervals at;
};

/// A piece of memory that was allocated in one go.
struct Region {
  enum class Kind { kDevice, kPinned, kRegistered, kModule };
  Kind kind = Kind::kDevice;
  std::uintptr_t begin = 0;
  std::size_t bytes = 0;
  std::string name;
  bool freeing = false;  // the host has asked for it
  bool freed = false;    // and the device has come to it
  std::uint64_t charged = 0;
  std::vector<Access> log;
  std::vector<Access> pinned_uses;  // that the host has not waited for
  bool signals = false;  // streams wait for values in it: the host may write to it at any time
  std::uintptr_t end() const { return begin + bytes; }
};

/// All regions there are, by address.
class Regions {
 public:
  Region& Add(Region region);
  /// The region that holds the byte, freed ones included, or null.
  Region* Find(std::uintptr_t at);
  /// The last region that begins at or before the byte, or null.
  Region* Before(std::uintptr_t at);
  void Erase(std::uintptr_t begin) { regions_.erase(begin); }
  void Clear() { regions_.clear(); }
  std::size_t size() const { return regions_.size(); }
  void EraseIf(const std::function<bool(const Region&)>& old) {
    std::erase_if(regions_, [&](const auto& entry) { return old(entry.second); });
  }
  void ForEach(const std::function<void(Region&)>& visit);

 private:
  std::map<std::uintptr_t, Region> regions_;
};

/// Compares an access with those before it, calls `report` for each that is not ordered, and keeps
/// it. `clock`: what was known to be done when the access was asked for.
void CheckOrder(Region& region, Access access, const Clock& clock,
                const std::function<void(std::string)>& report);
/// Forgets accesses that all later ones are ordered after.
void ForgetBefore(Region& region, const Clock& known_to_all);

}  // namespace standin
