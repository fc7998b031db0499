// SPDX-License-Identifier: Apache-2.0
// Which accesses to a block's shared memory are ordered: by a barrier of the block, or by
// __syncwarp in a warp. Shuffles order nothing. A race is found in every order in which the threads
// may run.
#pragma once
#include <array>
#include <cstdint>
#include <vector>

namespace caesura_emulator {

class SharedMemory {
 public:
  /// Where it lies: all of it, and the dynamic part within.
  struct Place {
    std::uintptr_t begin = 0, end = 0, dynamic = 0;
    unsigned dynamic_bytes = 0;
  };
  struct Race {
    bool found = false;
    bool other_wrote = false;
    unsigned other_lane = 0;
    const void* other_place = nullptr;
  };

  SharedMemory(const Place& place, unsigned lanes);
  bool Contains(std::uintptr_t at) const { return at - place_.begin < place_.end - place_.begin; }
  /// False if some of the bytes are dynamic memory beyond what the launch asked for.
  bool Valid(std::uintptr_t at, unsigned bytes) const;
  /// A new block begins: all bytes are poisoned (NaN in every floating-point type).
  void BeginBlock();
  void Barrier() { barrier_ = ++now_; }
  void WarpBarrier(unsigned warp, unsigned mask);
  Race Access(std::uintptr_t at, unsigned bytes, unsigned flags, unsigned lane, const void* place);

 private:
  struct Use {
    std::uint32_t time = 0;
    std::uint16_t lane = 0;
    bool atomic = false;
    const void* place = nullptr;
  };
  struct Cell {
    Use write;
    std::array<Use, 2> reads;  // of different lanes: whoever writes conflicts with one of them
  };
  bool Ordered(const Use& use, unsigned lane) const {
    if (use.time <= barrier_ || use.lane == lane) return true;
    return use.lane / 32 == lane / 32 &&
           use.time <= warps_[lane / 32][use.lane % 32 * 32 + lane % 32];
  }

  Place place_;
  std::uint32_t now_ = 0, barrier_ = 0;
  std::vector<std::array<std::uint32_t, 1024>> warps_;  // the last __syncwarp of two lanes
  std::vector<Cell> cells_;
};

}  // namespace caesura_emulator
