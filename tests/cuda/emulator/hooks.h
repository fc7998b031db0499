// SPDX-License-Identifier: Apache-2.0
// The functions that g++ calls under -fsanitize=thread and -fsanitize=bounds,alignment, for kernels
// (device.h). They are hidden: a program under the real ThreadSanitizer keeps its own.
#pragma once

#define CAESURA_HOOK \
  extern "C" __attribute__((visibility("hidden"), no_sanitize("thread", "undefined"), used)) void

namespace caesura_emulator {
inline __attribute__((always_inline, no_sanitize("thread", "undefined"))) void Hook(
    const void* at, unsigned bytes, unsigned flags, const void* place) {
  Lane* self = Self();
  const auto difference =
      reinterpret_cast<std::uintptr_t>(at) ^ reinterpret_cast<std::uintptr_t>(self);
  if (difference >= kLaneBytes) self->api->access(self, at, bytes, flags, place);
}
struct SourceLocation {
  const char* file;
  unsigned line, column;
};
}  // namespace caesura_emulator

#define CAESURA_ACCESS_HOOKS(BYTES)                                             \
  CAESURA_HOOK __tsan_read##BYTES(void* at) {                                   \
    caesura_emulator::Hook(at, BYTES, caesura_emulator::kRead, CAESURA_PLACE);  \
  }                                                                             \
  CAESURA_HOOK __tsan_write##BYTES(void* at) {                                  \
    caesura_emulator::Hook(at, BYTES, caesura_emulator::kWrite, CAESURA_PLACE); \
  }                                                                             \
  CAESURA_HOOK __tsan_unaligned_read##BYTES(void* at) {                         \
    caesura_emulator::Hook(at, BYTES, caesura_emulator::kRead, CAESURA_PLACE);  \
  }                                                                             \
  CAESURA_HOOK __tsan_unaligned_write##BYTES(void* at) {                        \
    caesura_emulator::Hook(at, BYTES, caesura_emulator::kWrite, CAESURA_PLACE); \
  }
CAESURA_ACCESS_HOOKS(1)
CAESURA_ACCESS_HOOKS(2)
CAESURA_ACCESS_HOOKS(4)
CAESURA_ACCESS_HOOKS(8)
CAESURA_ACCESS_HOOKS(16)
CAESURA_HOOK __tsan_read_range(void* at, long bytes) {
  caesura_emulator::Hook(at, static_cast<unsigned>(bytes), caesura_emulator::kRead, CAESURA_PLACE);
}
CAESURA_HOOK __tsan_write_range(void* at, long bytes) {
  caesura_emulator::Hook(at, static_cast<unsigned>(bytes), caesura_emulator::kWrite, CAESURA_PLACE);
}
CAESURA_HOOK __tsan_init() {}
CAESURA_HOOK __tsan_func_entry(void*) {}
CAESURA_HOOK __tsan_func_exit(void*) {}

CAESURA_HOOK __ubsan_handle_out_of_bounds_abort(void* data, void*) {
  const auto* at = static_cast<const caesura_emulator::SourceLocation*>(data);
  caesura_emulator::Lane* self = caesura_emulator::Self();
  self->api->fault(self, "an index is out of the bounds of an array", at->file, at->line, nullptr);
}
CAESURA_HOOK __ubsan_handle_type_mismatch_v1_abort(void* data, void*) {
  const auto* at = static_cast<const caesura_emulator::SourceLocation*>(data);
  caesura_emulator::Lane* self = caesura_emulator::Self();
  self->api->fault(self, "an address is misaligned", at->file, at->line, nullptr);
}

// cuModuleLoadData reads this from a library.
#define CAESURA_MODULE_BEGIN                                                            \
  extern "C" thread_local unsigned char caesura_dynamic_shared[];                       \
  extern "C" __attribute__((no_sanitize("thread"))) void* caesura_dynamic_shared_at() { \
    return caesura_dynamic_shared;                                                      \
  }                                                                                     \
  extern "C" __attribute__((no_sanitize("thread"))) void caesura_emulated_module(       \
      caesura_emulator::Module* module) {                                               \
    static caesura_emulator::Entry entries[] = {
#define CAESURA_MODULE_KERNEL(TEXT, ...) ::caesura_emulator::Kernel<(__VA_ARGS__)>::Make(TEXT),
#define CAESURA_MODULE_END(ARCHITECTURE)                                      \
  { nullptr, nullptr, nullptr, 0, nullptr }                                   \
  }                                                                           \
  ;                                                                           \
  *module = {entries, sizeof(entries) / sizeof(entries[0]) - 1, ARCHITECTURE, \
             &caesura_dynamic_shared_at};                                     \
  }
