// SPDX-License-Identifier: Apache-2.0
#include "emulator/fiber.h"
#include <pthread.h>
#include <sys/mman.h>
#include <cstdint>
#include <new>
#if defined(__SANITIZE_ADDRESS__)
#include <sanitizer/asan_interface.h>
#endif
#if defined(__SANITIZE_THREAD__)
#include <sanitizer/tsan_interface.h>
#endif

// Keeps what a call must keep, changes the stack, and returns on the new one.
extern "C" void caesura_switch(void** save, void* load);
asm(R"(
.text
.globl caesura_switch
.hidden caesura_switch
.type caesura_switch, @function
caesura_switch:
  pushq %rbp
  pushq %rbx
  pushq %r12
  pushq %r13
  pushq %r14
  pushq %r15
  movq %rsp, (%rdi)
  movq %rsi, %rsp
  popq %r15
  popq %r14
  popq %r13
  popq %r12
  popq %rbx
  popq %rbp
  ret
.size caesura_switch, .-caesura_switch
)");

namespace caesura_emulator {
namespace {
constexpr std::size_t kPage = 4096;
constexpr std::size_t kFoot = 2 * kPage;  // the Lane's page, and the closed one
}  // namespace

Context HostContext() {
  static thread_local Context host;
  if (host.bottom != nullptr) return host;
  pthread_attr_t attributes;
  pthread_getattr_np(pthread_self(), &attributes);
  void* bottom = nullptr;
  pthread_attr_getstack(&attributes, &bottom, &host.bytes);
  pthread_attr_destroy(&attributes);
  host.bottom = bottom;
#if defined(__SANITIZE_THREAD__)
  host.fiber = __tsan_get_current_fiber();
#endif
  return host;
}

#if defined(__SANITIZE_THREAD__)
__attribute__((no_sanitize("thread")))
#endif
void Switch(Context& from, Context& to, [[maybe_unused]] bool last) {
#if defined(__SANITIZE_ADDRESS__)
  __sanitizer_start_switch_fiber(last ? nullptr : &from.fake_stack, to.bottom, to.bytes);
#endif
#if defined(__SANITIZE_THREAD__)
  __tsan_switch_to_fiber(to.fiber, 0);
#endif
  caesura_switch(&from.stack_pointer, to.stack_pointer);
#if defined(__SANITIZE_ADDRESS__)
  __sanitizer_finish_switch_fiber(from.fake_stack, nullptr, nullptr);
#endif
}

void Arrived([[maybe_unused]] Context& self) {
#if defined(__SANITIZE_ADDRESS__)
  __sanitizer_finish_switch_fiber(self.fake_stack, nullptr, nullptr);
#endif
}

Stacks::~Stacks() {
  for (char* piece : pieces_) munmap(piece, kLaneBytes);
#if defined(__SANITIZE_THREAD__)
  for (void* fiber : fibers_) __tsan_destroy_fiber(fiber);
#endif
}

void Stacks::Grow(std::size_t count) {
  while (pieces_.size() < count) {
    void* memory = mmap(nullptr, 2 * kLaneBytes, PROT_READ | PROT_WRITE,
                        MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (memory == MAP_FAILED) throw std::bad_alloc();
    const auto begin = reinterpret_cast<std::uintptr_t>(memory);
    const std::uintptr_t at = (begin + kLaneBytes - 1) & ~(kLaneBytes - 1);
    if (at > begin) munmap(memory, at - begin);
    munmap(reinterpret_cast<void*>(at + kLaneBytes), begin + kLaneBytes - at);
    char* piece = reinterpret_cast<char*>(at);
    mprotect(piece + kPage, kPage, PROT_NONE);
    pieces_.push_back(piece);
#if defined(__SANITIZE_THREAD__)
    fibers_.push_back(__tsan_create_fiber(0));
#endif
  }
}

Lane* Stacks::lane(std::size_t index) const { return reinterpret_cast<Lane*>(pieces_[index]); }

Context Stacks::Start(std::size_t index, void (*entry)()) const {
  Context context;
  char* piece = pieces_[index];
  context.bottom = piece + kFoot;
  context.bytes = kLaneBytes - kFoot;
#if defined(__SANITIZE_ADDRESS__)
  __asan_unpoison_memory_region(piece + kFoot,
                                kLaneBytes - kFoot);  // frames that were left for good
#endif
  void** top = reinterpret_cast<void**>(piece + kLaneBytes);
  *--top = nullptr;  // entry begins as after a call
  *--top = reinterpret_cast<void*>(entry);
  for (int i = 0; i < 6; ++i) *--top = nullptr;
  context.stack_pointer = top;
#if defined(__SANITIZE_THREAD__)
  context.fiber = fibers_[index];
#endif
  return context;
}

}  // namespace caesura_emulator
