// SPDX-License-Identifier: Apache-2.0
#include "driver/order.h"
#include <algorithm>
#include <utility>

namespace standin {

void Clock::Join(const Clock& other) {
  if (times_.size() < other.times_.size()) times_.resize(other.times_.size());
  for (std::size_t i = 0; i < other.times_.size(); ++i) {
    times_[i] = std::max(times_[i], other.times_[i]);
  }
}

void Clock::Meet(const Clock& other) {
  for (std::size_t i = 0; i < times_.size(); ++i) {
    times_[i] = std::min(times_[i], other[static_cast<int>(i)]);
  }
}

std::uint32_t Clock::Tick(int agent) {
  const auto i = static_cast<std::size_t>(agent);
  if (times_.size() <= i) times_.resize(i + 1);
  return ++times_[i];
}

Region& Regions::Add(Region region) {
  const std::uintptr_t begin = region.begin;
  return regions_.insert_or_assign(begin, std::move(region)).first->second;
}

Region* Regions::Before(std::uintptr_t at) {
  auto after = regions_.upper_bound(at);
  return after == regions_.begin() ? nullptr : &std::prev(after)->second;
}

Region* Regions::Find(std::uintptr_t at) {
  Region* region = Before(at);
  return region != nullptr && at < region->end() ? region : nullptr;
}

void Regions::ForEach(const std::function<void(Region&)>& visit) {
  for (auto& [begin, region] : regions_) visit(region);
}

namespace {

// The first byte that both hold, or 0.
std::uintptr_t Overlap(const Intervals& a, const Intervals& b) {
  for (std::size_t i = 0, j = 0; i < a.size() && j < b.size();) {
    if (a[i].begin < b[j].end && b[j].begin < a[i].end) return std::max(a[i].begin, b[j].begin);
    a[i].end <= b[j].begin ? ++i : ++j;
  }
  return 0;
}

bool Covers(const Intervals& a, const Intervals& b) {
  std::size_t i = 0;
  for (const Interval& part : b) {
    while (i < a.size() && a[i].end < part.end) ++i;
    if (i == a.size() || a[i].begin > part.begin) return false;
  }
  return true;
}

}  // namespace

void CheckOrder(Region& region, Access access, const Clock& clock,
                const std::function<void(std::string)>& report) {
  std::erase_if(region.log, [&](const Access& other) {
    const bool ordered = other.agent == access.agent || clock[other.agent] >= other.time;
    if (!ordered && (access.writes || other.writes)) {
      if (const std::uintptr_t at = Overlap(access.at, other.at); at != 0) {
        report("not ordered: " + access.what + (access.writes ? " writes" : " reads") + " byte " +
               std::to_string(at - region.begin) + " of " + region.name + ", which " + other.what +
               (other.writes ? " writes" : " reads"));
      }
    }
    // Whoever conflicts with an access that this one covers and follows conflicts with this one
    // too.
    return ordered && (access.writes || !other.writes) && Covers(access.at, other.at);
  });
  region.log.push_back(std::move(access));
}

void ForgetBefore(Region& region, const Clock& known_to_all) {
  std::erase_if(region.log,
                [&](const Access& access) { return known_to_all[access.agent] >= access.time; });
}

}  // namespace standin
