// SPDX-License-Identifier: Apache-2.0
// Every source begins with these types, loads and stores.
//
// NVRTC has no standard library: bfloat16 and float16 are structs of bits, rounded to nearest even.
// GPUs from sm_80 on have instructions for that; older ones, and the emulator of the tests, compute
// with integers.
#ifndef CAESURA_CORE_KERNELS_CUDA_PRELUDE_CUH_
#define CAESURA_CORE_KERNELS_CUDA_PRELUDE_CUH_

typedef long long i64;
typedef unsigned long long u64;
struct bf16 {
  unsigned short bits;
};
struct f16 {
  unsigned short bits;
};
#define INFINITE __int_as_float(0x7f800000)
#if !defined(__CUDA_ARCH__) || __CUDA_ARCH__ < 800
#define HALVES_BY_SOFTWARE
#endif

__device__ inline float Load(const float* p) { return *p; }
__device__ inline double Load(const double* p) { return *p; }
__device__ inline bool Load(const bool* p) { return *(const unsigned char*)p != 0; }
__device__ inline signed char Load(const signed char* p) { return *p; }
__device__ inline unsigned char Load(const unsigned char* p) { return *p; }
__device__ inline short Load(const short* p) { return *p; }
__device__ inline unsigned short Load(const unsigned short* p) { return *p; }
__device__ inline int Load(const int* p) { return *p; }
__device__ inline unsigned Load(const unsigned* p) { return *p; }
__device__ inline i64 Load(const i64* p) { return *p; }
__device__ inline u64 Load(const u64* p) { return *p; }
__device__ inline float Load(const bf16* p) { return __uint_as_float((unsigned)p->bits << 16); }
#ifdef HALVES_BY_SOFTWARE
__device__ inline float Load(const f16* p) {
  const unsigned h = p->bits, sign = (h & 0x8000u) << 16, rest = h & 0x7fffu;
  if (rest >= 0x7c00u) return __uint_as_float(sign | 0x7f800000u | (rest & 0x3ffu) << 13);
  const float v = __uint_as_float(rest << 13) * 5.192296858534828e+33f;  // 2^112
  return __uint_as_float(sign | __float_as_uint(v));
}

#else
__device__ inline float Load(const f16* p) {
  float v;
  asm("cvt.f32.f16 %0, %1;" : "=f"(v) : "h"(p->bits));
  return v;
}
#endif

template <typename T, typename V>
__device__ inline void Store(T* p, V v) {
  *p = (T)v;
}
#ifdef HALVES_BY_SOFTWARE
__device__ inline void Store(bf16* p, float v) {
  const unsigned u = __float_as_uint(v);
  p->bits = v != v ? 0x7fc0 : (unsigned short)((u + 0x7fffu + (u >> 16 & 1u)) >> 16);
}
__device__ inline void Store(f16* p, float v) {
  const unsigned u = __float_as_uint(v), sign = u >> 16 & 0x8000u, rest = u & 0x7fffffffu;
  unsigned bits;
  if (rest > 0x7f800000u) bits = 0x7e00u;
  else if (rest >= 0x477ff000u) bits = 0x7c00u;
  else if (rest < 0x38800000u)  // denormal: the sum's last bit is 2^-24
    bits = __float_as_uint(__uint_as_float(rest) + 0.5f) - 0x3f000000u;
  else bits = (rest - 0x38000000u + 0xfffu + (rest >> 13 & 1u)) >> 13;
  p->bits = (unsigned short)(sign | bits);
}
#else
__device__ inline void Store(bf16* p, float v) {
  asm("cvt.rn.bf16.f32 %0, %1;" : "=h"(p->bits) : "f"(v));
}
__device__ inline void Store(f16* p, float v) {
  asm("cvt.rn.f16.f32 %0, %1;" : "=h"(p->bits) : "f"(v));
}
#endif

// 1 / v without the branch of an exact division: in float32 to within 2 in the last place, and 0
// from 2^126 on.
__device__ inline float Inverse(float v) { return __fdividef(1.0f, v); }
__device__ inline double Inverse(double v) { return 1.0 / v; }

template <typename H>
__device__ inline float Rounded(float v) {
  H h;
  Store(&h, v);
  return Load(&h);
}

// N elements side by side. Where their address is a multiple of the struct's alignment (kWhole),
// one access moves 16 bytes of them, or all.
template <typename S, int N>
struct alignas(sizeof(S) * N < 16 ? sizeof(S) * N : 16) Vector {
  S at[N];
};
template <int N, bool kWhole, typename S>
__device__ inline Vector<S, N> LoadVector(const S* p) {
  if constexpr (kWhole) {
    return *(const Vector<S, N>*)p;
  } else {
    Vector<S, N> out;
#pragma unroll
    for (int j = 0; j < N; ++j) out.at[j] = p[j];
    return out;
  }
}
template <bool kWhole, typename S, int N>
__device__ inline void StoreVector(S* p, const Vector<S, N>& v) {
  if constexpr (kWhole) {
    *(Vector<S, N>*)p = v;
  } else {
#pragma unroll
    for (int j = 0; j < N; ++j) p[j] = v.at[j];
  }
}

template <typename T>
__device__ inline T ExtremeMax(T a, T b) {
  return a > b || a != a ? a : b;
}
template <typename T>
__device__ inline T ExtremeMin(T a, T b) {
  return a < b || a != a ? a : b;
}
// a - floor(a / b) * b, with b's sign.
template <typename T>
__device__ inline T FloorMod(T a, T b) {
  const T rest = fmod(a, b);
  return rest == 0 ? copysign((T)0, b) : (rest < 0) != (b < 0) ? rest + b : rest;
}
// A real as an integer: truncated; 0 for a NaN, the lowest integer for what does not fit.
template <typename T>
__device__ inline int Truncated32(T x) {
  const bool fits = x >= (T)-2147483648.0 && x < (T)2147483648.0;
  return fits ? (int)x : x != x ? 0 : -2147483647 - 1;
}
template <typename T>
__device__ inline i64 Truncated64(T x) {
  const bool fits = x >= (T)-9223372036854775808.0 && x < (T)9223372036854775808.0;
  return fits ? (i64)x : x != x ? 0 : -9223372036854775807LL - 1;
}
template <typename T>
__device__ inline u64 TruncatedTo64Bits(T x) {
  const T half = (T)9223372036854775808.0;
  return x >= half ? (u64)Truncated64(x - half) + (1ull << 63) : (u64)Truncated64(x);
}

#endif  // CAESURA_CORE_KERNELS_CUDA_PRELUDE_CUH_
