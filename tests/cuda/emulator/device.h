// SPDX-License-Identifier: Apache-2.0
// CUDA's device dialect for g++ (C++20, x86-64): included before the source of a kernel that runs
// on the CPU. Compile with -fsanitize=thread and -fsanitize=bounds,alignment, and link without
// them: their hooks are defined here, and hand each load and store that is not in the thread's own
// stack to the scheduler.
#pragma once
#include <math.h>  // with overloads for float in the global namespace, as CUDA has them

#include <cmath>
#include <cstdint>
#include <cstring>
#include <type_traits>
#include <vector_functions.h>
#include <vector_types.h>
#include "lane.h"

#undef __global__
#undef __device__
#undef __host__
#undef __constant__
#undef __shared__
#undef __forceinline__
#undef __noinline__
#undef __launch_bounds__
#undef __restrict__
#undef __grid_constant__
#define __global__ __attribute__((noinline))
#define __device__
#define __host__
#define __constant__
#define __shared__ thread_local  // in a segment of its own; one block at a time on a host thread
#define __forceinline__ inline
#define __noinline__ __attribute__((noinline))
#define __launch_bounds__(...)
#define __restrict__ __restrict
#define __grid_constant__
#define CAESURA_EMULATOR 1

namespace caesura_emulator {

inline __attribute__((always_inline)) Lane* Self() {
  return reinterpret_cast<Lane*>(reinterpret_cast<std::uintptr_t>(__builtin_frame_address(0)) &
                                 ~(kLaneBytes - 1));
}

// Loads in assembly, which the hooks do not see.
inline unsigned Load(const unsigned* at) {
  unsigned value;
  asm("movl (%1), %0" : "=r"(value) : "r"(at));
  return value;
}
inline uint3 Load3(const unsigned* at) { return {Load(at), Load(at + 1), Load(at + 2)}; }

#define CAESURA_UNSEEN __attribute__((no_sanitize("thread", "undefined"), noinline))
#define CAESURA_PLACE __builtin_extract_return_addr(__builtin_return_address(0))

inline CAESURA_UNSEEN std::uint64_t Warp(WarpOp op, unsigned mask, std::uint64_t value,
                                         int argument, int width, const void* place) {
  Lane* self = Self();
  return self->api->warp(self, op, mask, value, argument, width, place);
}

template <typename T>
inline CAESURA_UNSEEN T Shuffle(WarpOp op, unsigned mask, T value, int argument, int width) {
  static_assert(sizeof(T) <= 8 && std::is_trivially_copyable_v<T>);
  std::uint64_t bits = 0;
  std::memcpy(&bits, &value, sizeof value);
  bits = Warp(op, mask, bits, argument, width, CAESURA_PLACE);
  std::memcpy(&value, &bits, sizeof value);
  return value;
}

template <typename T, typename F>
inline CAESURA_UNSEEN T Atomic(T* at, F change, const void* place) {
  Lane* self = Self();
  self->api->access(self, at, sizeof(T), kWrite | kAtomic, place);
  const T old = *at;
  *at = change(old);
  return old;
}

template <typename... A>
struct Arguments {
  static constexpr unsigned kCount = sizeof...(A);
  static constexpr unsigned kSizes[kCount + 1] = {sizeof(A)...};
};
template <auto F, typename = decltype(F)>
struct Kernel {  // a variable
  static constexpr Entry Make(const char* expression) {
    return {expression, (void*)F, nullptr, 0, nullptr};
  }
};
template <auto F, typename... A>
struct Kernel<F, void (*)(A...)> {
  template <unsigned... I>
  static CAESURA_UNSEEN void Call(void** arguments, std::integer_sequence<unsigned, I...>) {
    F(*static_cast<std::remove_const_t<A>*>(arguments[I])...);
  }
  static CAESURA_UNSEEN void Unpack(void** arguments) {
    Call(arguments, std::make_integer_sequence<unsigned, sizeof...(A)>{});
  }
  static Entry Make(const char* expression) {
    return {expression, (void*)F, &Unpack, sizeof...(A), Arguments<A...>::kSizes};
  }
};

}  // namespace caesura_emulator

#define threadIdx (::caesura_emulator::Load3(::caesura_emulator::Self()->thread))
#define blockIdx (::caesura_emulator::Load3(::caesura_emulator::Self()->block))
#define blockDim (::caesura_emulator::Load3(::caesura_emulator::Self()->block_size))
#define gridDim (::caesura_emulator::Load3(::caesura_emulator::Self()->grid_size))
#define warpSize 32

#include "device_functions.h"
#include "hooks.h"
