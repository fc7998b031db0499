// SPDX-License-Identifier: Apache-2.0
// What a kernel compiled for the CPU and the scheduler that runs its threads say to each other. A
// kernel's library holds no reference to the scheduler: each thread finds its Lane at the foot of
// its own stack, and the functions through it.
#pragma once
#include <cstdint>

namespace caesura_emulator {

/// A thread's stack and Lane, in one piece of memory that is aligned to its size.
inline constexpr std::uintptr_t kLaneBytes = std::uintptr_t{128} << 10;
/// Most dynamic shared memory of a block, as on sm_90.
inline constexpr unsigned kMostDynamicShared = 232448;

enum AccessFlags : unsigned {
  kRead = 0,
  kWrite = 1,
  kAtomic = 2,
  kFence = 4  // no access: orders those before it and those after it, for other blocks
};

enum class WarpOp : unsigned {
  kSync,
  kShuffle,  // argument: the source lane
  kShuffleUp,
  kShuffleDown,
  kShuffleXor,
  kBallot,
  kMatchAny,
  kReduceAdd,  // of unsigned ints, as the three below
  kReduceMin,
  kReduceMax,
  kActive
};

struct Lane;

struct Api {
  /// Checks a load or store before it happens.
  void (*access)(Lane*, const void* at, unsigned bytes, unsigned flags, const void* place);
  /// Waits for the block; returns the number of lanes that passed a predicate other than 0.
  unsigned (*barrier)(Lane*, int predicate, const void* place);
  /// Waits for the lanes of the mask; returns what the operation gives this lane.
  std::uint64_t (*warp)(Lane*, WarpOp, unsigned mask, std::uint64_t value, int argument, int width,
                        const void* place);
  /// Ends the launch with an error; place is "file:line", or nullptr.
  void (*fault)(Lane*, const char* what, const char* file, unsigned line, const void* place);
};

struct Lane {
  unsigned thread[3], block[3], block_size[3], grid_size[3];
  const Api* api;
  void* scheduler;
};

/// One kernel of a library, or one variable if `call` is null.
struct Entry {
  const char* expression;
  void* address;
  void (*call)(void** arguments);
  unsigned count;
  const unsigned* sizes;
};

/// What a library exports as `caesura_emulated_module`.
struct Module {
  const Entry* entries;
  unsigned count;
  const char* architecture;
  void* (*dynamic_shared)();  // of the calling host thread
};

}  // namespace caesura_emulator
