// SPDX-License-Identifier: Apache-2.0
// Runs the threads of a grid, one block after another, in an order drawn from a seed.
#pragma once
#include <cstdint>
#include <functional>
#include <set>
#include <string>
#include <utility>
#include <vector>
#include "emulator/fiber.h"
#include "emulator/lane.h"
#include "emulator/shared_memory.h"

namespace caesura_emulator {

enum class LaneOrder {
  kDrawn,  // from the seed, one of the next
  kForward,
  kReverse,
  kShuffled,
  kOneWarpAhead,  // the first warp runs as far as it can, then the next
  kAnyWarpAhead   // a drawn one does
};

/// The device's memory, as a kernel sees it.
class Memory {
 public:
  virtual ~Memory() = default;
  /// Notes an access of a block; returns an empty text, or why it is not allowed. `race` becomes
  /// what another block has done to one of the bytes, where the result depends on which comes
  /// first; told once for each place. Blocks are in order where one fences and changes a word by an
  /// atomic operation, and the other changes that word later, and fences.
  virtual std::string Access(std::uintptr_t at, unsigned bytes, unsigned flags, std::uint32_t block,
                             const void* place, std::string& race) = 0;
  /// A thread of the block has come to a __threadfence.
  virtual void Fence(std::uint32_t block) = 0;
};

struct Launch {
  std::string kernel;
  unsigned grid[3] = {1, 1, 1}, block[3] = {1, 1, 1};
  std::function<void()> body;  // of each thread
  SharedMemory::Place shared;
  LaneOrder order = LaneOrder::kDrawn;
  std::uint64_t seed = 0;
};

class Grid {
 public:
  Grid(const Launch& launch, Memory& memory, std::vector<std::string>& reports);
  /// False if a thread has done what ends a launch; the reports say what.
  bool Run();

 private:
  enum class State : std::uint8_t { kReady, kBarrier, kWarp, kDone };
  struct Thread {
    Context context;
    State state = State::kReady;
    int predicate = 0;
    WarpOp op = WarpOp::kSync;
    unsigned mask = 0;
    std::uint64_t value = 0, result = 0;
    int argument = 0, width = 32;
    const void* place = nullptr;
  };

  bool RunBlock(std::uint64_t block);
  bool RunInOrder();
  bool RunWarpsAhead();
  void Step(unsigned index);
  void FinishWarp(unsigned index);
  std::uint64_t WarpResult(unsigned index, unsigned first);
  std::uint64_t Shuffled(unsigned index, unsigned first);
  bool FinishBarrier();
  void Yield(unsigned index);
  void Fail(unsigned index, const std::string& what, const void* place);
  void Report(unsigned index, const std::string& what, const void* place);
  std::uint64_t Draw();
  unsigned Index(const Lane* lane) const;

  static void Entry();
  static Grid* Of(Lane* lane);
  static void OnAccess(Lane*, const void* at, unsigned bytes, unsigned flags, const void* place);
  static unsigned OnBarrier(Lane*, int predicate, const void* place);
  static std::uint64_t OnWarp(Lane*, WarpOp, unsigned mask, std::uint64_t value, int argument,
                              int width, const void* place);
  static void OnFault(Lane*, const char* what, const char* file, unsigned line, const void* place);

  const Launch& launch_;
  Memory& memory_;
  std::vector<std::string>& reports_;
  std::set<std::pair<std::string, const void*>> reported_;
  std::set<std::pair<const void*, const void*>> races_;  // one report for two places
  SharedMemory shared_;
  LaneOrder order_;
  std::uint64_t random_;
  unsigned lanes_;
  std::uint32_t block_ = 0;
  std::vector<Thread> threads_;
  Context host_;
  unsigned done_ = 0;
  bool failed_ = false;
  static const Api kApi;
};

/// "file:line" of an address in a loaded library, as far as its debug information tells.
std::string PlaceName(const void* place);

}  // namespace caesura_emulator
