// SPDX-License-Identifier: Apache-2.0
// Functions of CUDA's device dialect for g++ (device.h). Integer and conversion functions give the
// device's bits; those of <cmath> round as glibc does, and the fast ones (__expf) are as exact as
// the others.
#pragma once

// --- Threads that wait for each other ---

inline CAESURA_UNSEEN unsigned caesura_barrier(int predicate, const void* place) {
  caesura_emulator::Lane* self = caesura_emulator::Self();
  return self->api->barrier(self, predicate, place);
}
inline CAESURA_UNSEEN void __syncthreads() { caesura_barrier(0, CAESURA_PLACE); }
inline CAESURA_UNSEEN int __syncthreads_count(int predicate) {
  return static_cast<int>(caesura_barrier(predicate, CAESURA_PLACE));
}
inline CAESURA_UNSEEN int __syncthreads_or(int predicate) {
  return caesura_barrier(predicate, CAESURA_PLACE) != 0;
}
inline CAESURA_UNSEEN int __syncthreads_and(int predicate) {
  return caesura_barrier(predicate == 0, CAESURA_PLACE) == 0;
}
inline CAESURA_UNSEEN void __syncwarp(unsigned mask = 0xffffffffu) {
  caesura_emulator::Warp(caesura_emulator::WarpOp::kSync, mask, 0, 0, 32, CAESURA_PLACE);
}
template <typename T>
T __shfl_sync(unsigned mask, T value, int source, int width = 32) {
  return caesura_emulator::Shuffle(caesura_emulator::WarpOp::kShuffle, mask, value, source, width);
}
template <typename T>
T __shfl_up_sync(unsigned mask, T value, unsigned delta, int width = 32) {
  return caesura_emulator::Shuffle(caesura_emulator::WarpOp::kShuffleUp, mask, value,
                                   static_cast<int>(delta), width);
}
template <typename T>
T __shfl_down_sync(unsigned mask, T value, unsigned delta, int width = 32) {
  return caesura_emulator::Shuffle(caesura_emulator::WarpOp::kShuffleDown, mask, value,
                                   static_cast<int>(delta), width);
}
template <typename T>
T __shfl_xor_sync(unsigned mask, T value, int lane_mask, int width = 32) {
  return caesura_emulator::Shuffle(caesura_emulator::WarpOp::kShuffleXor, mask, value, lane_mask,
                                   width);
}
inline CAESURA_UNSEEN unsigned __ballot_sync(unsigned mask, int predicate) {
  return static_cast<unsigned>(caesura_emulator::Warp(caesura_emulator::WarpOp::kBallot, mask,
                                                      predicate != 0, 0, 32, CAESURA_PLACE));
}
inline int __any_sync(unsigned mask, int predicate) { return __ballot_sync(mask, predicate) != 0; }
inline int __all_sync(unsigned mask, int predicate) {
  return __ballot_sync(mask, predicate == 0) == 0;
}
template <typename T>
unsigned __match_any_sync(unsigned mask, T value) {
  std::uint64_t bits = 0;
  std::memcpy(&bits, &value, sizeof value);
  return static_cast<unsigned>(caesura_emulator::Warp(caesura_emulator::WarpOp::kMatchAny, mask,
                                                      bits, 0, 32, CAESURA_PLACE));
}
inline CAESURA_UNSEEN unsigned __activemask() {
  return static_cast<unsigned>(
      caesura_emulator::Warp(caesura_emulator::WarpOp::kActive, 0, 0, 0, 32, CAESURA_PLACE));
}
#define CAESURA_REDUCE(NAME, OP)                                                                  \
  inline CAESURA_UNSEEN unsigned NAME(unsigned mask, unsigned value) {                            \
    return static_cast<unsigned>(                                                                 \
        caesura_emulator::Warp(caesura_emulator::WarpOp::OP, mask, value, 0, 32, CAESURA_PLACE)); \
  }
CAESURA_REDUCE(__reduce_add_sync, kReduceAdd)
CAESURA_REDUCE(__reduce_min_sync, kReduceMin)
CAESURA_REDUCE(__reduce_max_sync, kReduceMax)
#undef CAESURA_REDUCE
// Memory is consistent here all the same: the scheduler checks that fences are where they must be.
inline CAESURA_UNSEEN void __threadfence() {
  caesura_emulator::Lane* self = caesura_emulator::Self();
  self->api->access(self, nullptr, 0, caesura_emulator::kFence, CAESURA_PLACE);
}
inline void __threadfence_block() {}
inline void __threadfence_system() { __threadfence(); }

// --- Memory ---

template <typename T>
T __ldg(const T* at) {
  return *at;
}
template <typename T>
T __ldcs(const T* at) {
  return *at;
}
template <typename T>
void __stcs(T* at, T value) {
  *at = value;
}

#define CAESURA_ATOMIC(NAME, EXPRESSION)                                \
  template <typename T, typename V>                                     \
  inline CAESURA_UNSEEN T NAME(T* at, V given) {                        \
    const T value = static_cast<T>(given);                              \
    return caesura_emulator::Atomic(                                    \
        at, [value](T old) -> T { return EXPRESSION; }, CAESURA_PLACE); \
  }
CAESURA_ATOMIC(atomicAdd, static_cast<T>(old + value))
CAESURA_ATOMIC(atomicSub, static_cast<T>(old - value))
CAESURA_ATOMIC(atomicExch, ((void)old, value))
CAESURA_ATOMIC(atomicMin, old < value ? old : value)
CAESURA_ATOMIC(atomicMax, old > value ? old : value)
CAESURA_ATOMIC(atomicAnd, static_cast<T>(old& value))
CAESURA_ATOMIC(atomicOr, static_cast<T>(old | value))
CAESURA_ATOMIC(atomicXor, static_cast<T>(old ^ value))
CAESURA_ATOMIC(atomicInc, old >= value ? T(0) : static_cast<T>(old + 1))
CAESURA_ATOMIC(atomicDec, old == 0 || old > value ? value : static_cast<T>(old - 1))
#undef CAESURA_ATOMIC
template <typename T>
inline CAESURA_UNSEEN T atomicCAS(T* at, T expected, T value) {
  return caesura_emulator::Atomic(
      at, [=](T old) -> T { return old == expected ? value : old; }, CAESURA_PLACE);
}

inline CAESURA_UNSEEN void __trap() {
  caesura_emulator::Lane* self = caesura_emulator::Self();
  self->api->fault(self, "__trap was called", nullptr, 0, CAESURA_PLACE);
}
#undef assert
#define assert(CONDITION)                                                                 \
  ((CONDITION) ? void()                                                                   \
               : caesura_emulator::Self()->api->fault(caesura_emulator::Self(),           \
                                                      "an assertion failed: " #CONDITION, \
                                                      __FILE__, __LINE__, nullptr))

// --- Bits ---

inline int __float_as_int(float v) { return __builtin_bit_cast(int, v); }
inline unsigned __float_as_uint(float v) { return __builtin_bit_cast(unsigned, v); }
inline float __int_as_float(int v) { return __builtin_bit_cast(float, v); }
inline float __uint_as_float(unsigned v) { return __builtin_bit_cast(float, v); }
inline long long __double_as_longlong(double v) { return __builtin_bit_cast(long long, v); }
inline double __longlong_as_double(long long v) { return __builtin_bit_cast(double, v); }
inline int __popc(unsigned v) { return __builtin_popcount(v); }
inline int __popcll(unsigned long long v) { return __builtin_popcountll(v); }
inline int __clz(int v) { return v == 0 ? 32 : __builtin_clz(static_cast<unsigned>(v)); }
inline int __clzll(long long v) {
  return v == 0 ? 64 : __builtin_clzll(static_cast<unsigned long long>(v));
}
inline int __ffs(int v) { return __builtin_ffs(v); }
inline unsigned __brev(unsigned v) {
  unsigned r = 0;
  for (int i = 0; i < 32; ++i) r |= (v >> i & 1u) << (31 - i);
  return r;
}
inline unsigned __umulhi(unsigned a, unsigned b) {
  return static_cast<unsigned>(static_cast<std::uint64_t>(a) * b >> 32);
}
inline int __mulhi(int a, int b) {
  return static_cast<int>(static_cast<std::int64_t>(a) * b >> 32);
}
inline unsigned long long __umul64hi(unsigned long long a, unsigned long long b) {
  return static_cast<unsigned long long>(static_cast<unsigned __int128>(a) * b >> 64);
}

// --- Mathematics ---

inline float rsqrtf(float v) { return 1.0f / std::sqrt(v); }
inline double rsqrt(double v) { return 1.0 / std::sqrt(v); }
inline float __expf(float v) { return std::exp(v); }
inline float __logf(float v) { return std::log(v); }
inline float __log2f(float v) { return std::log2(v); }
inline float __powf(float a, float b) { return std::pow(a, b); }
inline float __sinf(float v) { return std::sin(v); }
inline float __cosf(float v) { return std::cos(v); }
inline float __tanf(float v) { return std::tan(v); }
inline float __fdividef(float a, float b) { return a / b; }
inline float __frcp_rn(float v) { return 1.0f / v; }
inline float __fsqrt_rn(float v) { return std::sqrt(v); }
inline float __frsqrt_rn(float v) { return rsqrtf(v); }
inline float __fadd_rn(float a, float b) { return a + b; }
inline float __fsub_rn(float a, float b) { return a - b; }
inline float __fmul_rn(float a, float b) { return a * b; }
inline float __fdiv_rn(float a, float b) { return a / b; }
inline float __fmaf_rn(float a, float b, float c) { return std::fma(a, b, c); }
inline double __dadd_rn(double a, double b) { return a + b; }
inline double __dmul_rn(double a, double b) { return a * b; }
inline float __saturatef(float v) { return v > 0 ? (v < 1 ? v : 1.0f) : 0.0f; }
inline int __float2int_rn(float v) { return static_cast<int>(std::nearbyint(v)); }
inline int __float2int_rz(float v) { return static_cast<int>(v); }
inline int __float2int_rd(float v) { return static_cast<int>(std::floor(v)); }
inline int __float2int_ru(float v) { return static_cast<int>(std::ceil(v)); }
inline float __int2float_rn(int v) { return static_cast<float>(v); }
inline float __uint2float_rn(unsigned v) { return static_cast<float>(v); }
inline float normcdff(float v) { return 0.5f * std::erfc(v * -0.70710678118654752f); }
inline void sincospif(float v, float* s, float* c) {
  *s = static_cast<float>(std::sin(v * 3.14159265358979323846));
  *c = static_cast<float>(std::cos(v * 3.14159265358979323846));
}
#define CAESURA_MINIMUM_MAXIMUM(T)                 \
  inline T min(T a, T b) { return b < a ? b : a; } \
  inline T max(T a, T b) { return a < b ? b : a; }
CAESURA_MINIMUM_MAXIMUM(int)
CAESURA_MINIMUM_MAXIMUM(unsigned)
CAESURA_MINIMUM_MAXIMUM(long)
CAESURA_MINIMUM_MAXIMUM(unsigned long)
CAESURA_MINIMUM_MAXIMUM(long long)
CAESURA_MINIMUM_MAXIMUM(unsigned long long)
#undef CAESURA_MINIMUM_MAXIMUM
inline float min(float a, float b) { return std::fmin(a, b); }
inline float max(float a, float b) { return std::fmax(a, b); }
inline double min(double a, double b) { return std::fmin(a, b); }
inline double max(double a, double b) { return std::fmax(a, b); }
