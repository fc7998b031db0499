// SPDX-License-Identifier: Apache-2.0
// Stacks for the threads of a block, and the switch between them, announced to AddressSanitizer and
// ThreadSanitizer.
#pragma once
#include <cstddef>
#include <vector>
#include "emulator/lane.h"

namespace caesura_emulator {

/// One place to go on from: a stack of the emulator's, or the host thread's own.
struct Context {
  void* stack_pointer = nullptr;
  const void* bottom = nullptr;  // of the stack
  std::size_t bytes = 0;
  void* fake_stack = nullptr;  // AddressSanitizer's
  void* fiber = nullptr;       // ThreadSanitizer's
};

/// Stands for the thread that calls.
Context HostContext();

/// Leaves `from`, whose place is kept, for `to`. `last`: nobody comes back to `from`.
void Switch(Context& from, Context& to, bool last = false);
/// To be called first on a new stack.
void Arrived(Context& self);

/// Stacks, each of kLaneBytes with a Lane at its foot and a closed page above it.
class Stacks {
 public:
  Stacks() = default;
  Stacks(const Stacks&) = delete;
  Stacks& operator=(const Stacks&) = delete;
  ~Stacks();
  void Grow(std::size_t count);
  Lane* lane(std::size_t index) const;
  /// Makes the next switch to the context call `entry`, which must not return.
  Context Start(std::size_t index, void (*entry)()) const;

 private:
  std::vector<char*> pieces_;  // one stack each
  std::vector<void*> fibers_;  // ThreadSanitizer's
};

}  // namespace caesura_emulator
