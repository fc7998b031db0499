// SPDX-License-Identifier: Apache-2.0
#include "emulator/shared_memory.h"
#include <algorithm>
#include <cstring>
#include "emulator/lane.h"

namespace caesura_emulator {

SharedMemory::SharedMemory(const Place& place, unsigned lanes)
    : place_(place), warps_((lanes + 31) / 32) {
  for (auto& warp : warps_) warp.fill(0);
}

bool SharedMemory::Valid(std::uintptr_t at, unsigned bytes) const {
  const std::uintptr_t used = place_.dynamic + place_.dynamic_bytes;
  return at + bytes <= place_.end &&
         (at + bytes <= used || at >= place_.dynamic + kMostDynamicShared);
}

void SharedMemory::BeginBlock() {
  const auto poison = [](std::uintptr_t begin, std::uintptr_t end) {
    if (end > begin) std::memset(reinterpret_cast<void*>(begin), 0xff, end - begin);
  };
  poison(place_.begin, place_.dynamic + place_.dynamic_bytes);
  poison(place_.dynamic + kMostDynamicShared, place_.end);
  Barrier();
}

void SharedMemory::WarpBarrier(unsigned warp, unsigned mask) {
  ++now_;
  for (unsigned a = 0; a < 32; ++a) {
    if ((mask >> a & 1) == 0) continue;
    for (unsigned b = 0; b < 32; ++b) {
      if ((mask >> b & 1) != 0) warps_[warp][a * 32 + b] = now_;
    }
  }
}

SharedMemory::Race SharedMemory::Access(std::uintptr_t at, unsigned bytes, unsigned flags,
                                        unsigned lane, const void* place) {
  const std::size_t first = at - place_.begin;
  if (cells_.size() < first + bytes) cells_.resize(first + bytes);
  const bool writes = (flags & kWrite) != 0, atomic = (flags & kAtomic) != 0;
  const Use use{now_ + 1, static_cast<std::uint16_t>(lane), atomic, place};
  Race race;
  const auto conflict = [&](const Use& other, bool other_wrote) {
    if (race.found || Ordered(other, lane) || (atomic && other.atomic)) return;
    race = {true, other_wrote, other.lane, other.place};
  };
  for (std::size_t i = first; i < first + bytes; ++i) {
    Cell& cell = cells_[i];
    conflict(cell.write, true);
    if (writes) {
      for (const Use& read : cell.reads) conflict(read, false);
      cell.write = use;
      continue;
    }
    // Keep the reads that a later write may conflict with.
    auto& [a, b] = cell.reads;
    if (a.time <= barrier_ || a.lane == lane) {
      a = use;
    } else if (b.time <= barrier_ || b.lane == lane || Ordered(b, lane)) {
      b = use;
    } else if (Ordered(a, lane)) {
      a = use;
    }
  }
  return race;
}

}  // namespace caesura_emulator
