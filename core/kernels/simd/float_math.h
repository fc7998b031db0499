// SPDX-License-Identifier: Apache-2.0
// exp, log, tanh, erf, the normal distribution and what is made of them, for float: without
// branches and calls, so that loops over them become vector code, and right to about 2 units in the
// last place with the usual answers for infinities and NaN. For other types the same names give
// <cmath>'s functions: `math::Exp(x)` in a template is fast for float and exact for double.
//
// Polynomials are minimax fits of our own; tests/core/kernels/float_math_test.cc bounds their
// error. Vector code needs -fno-trapping-math.
#ifndef CAESURA_CORE_KERNELS_SIMD_FLOAT_MATH_H_
#define CAESURA_CORE_KERNELS_SIMD_FLOAT_MATH_H_

#include <bit>
#include <cmath>
#include <cstdint>
#include <limits>
#include <numbers>

namespace caesura::math {

// a[0] + a[1] x + a[2] x^2 + ...
template <typename... A>
inline float Polynomial(float x, float first, A... rest) {
  if constexpr (sizeof...(rest) == 0) {
    return first;
  } else {
    return first + x * Polynomial(x, rest...);
  }
}

template <typename T>
inline T Exp(T x) {
  return std::exp(x);
}
// x = n ln 2 + r with |r| <= ln 2 / 2, and e^x = 2^n e^r: e^r, and n as the low bits of a float.
struct ReducedExp {
  float e, shifted;
};
inline constexpr float kRound =
    12582912.0f;  // 1.5 * 2^23: adding it leaves the nearest integer in the low bits
inline ReducedExp ReduceExp(float x) {
  const float shifted = x * 1.44269504f + kRound;
  const float n = shifted - kRound;
  const float r = (x - n * 0.693145752f) - n * 1.42860682e-6f;
  return {1.0f + (r + r * r *
                          Polynomial(r, 0.5f, 1.666666716e-1f, 4.166623577e-2f, 8.333260193e-3f,
                                     1.394838560e-3f, 1.992095786e-4f)),
          shifted};
}
inline float Exp(float x) {
  const float raised = x < -104.0f ? -104.0f : x;
  const auto [e, shifted] = ReduceExp(raised > 89.0f ? 89.0f : raised);
  // 2^n in two factors, as n may be out of the range of normal exponents.
  const int32_t power =
      static_cast<int32_t>(std::bit_cast<uint32_t>(shifted) - std::bit_cast<uint32_t>(kRound));
  const int32_t half = power >> 1;
  const float scale0 = std::bit_cast<float>(static_cast<uint32_t>(half + 127) << 23);
  const float scale1 = std::bit_cast<float>(
      (static_cast<uint32_t>(power) - static_cast<uint32_t>(half) + 127u) << 23);
  return e * scale0 * scale1;
}

template <typename T>
inline T Log(T x) {
  return std::log(x);
}
// x = 2^e (1 + f) with 1 + f in [sqrt(1/2), sqrt(2)).
inline float Log(float x) {
  constexpr float kInfinity = std::numeric_limits<float>::infinity();
  const bool subnormal = x < std::numeric_limits<float>::min();
  const uint32_t bits = std::bit_cast<uint32_t>(x * (subnormal ? 8388608.0f : 1.0f));
  const int32_t exponent = static_cast<int32_t>(bits - 0x3f3504f3u) >> 23;
  const float f = std::bit_cast<float>(bits - (static_cast<uint32_t>(exponent) << 23)) - 1.0f;
  const float e = static_cast<float>(exponent) - (subnormal ? 23.0f : 0.0f);
  const float tail = Polynomial(f, 3.333331048e-1f, -2.500000894e-1f, 2.000216693e-1f,
                                -1.666809022e-1f, 1.421855241e-1f, -1.240308657e-1f,
                                1.189352497e-1f, -1.169432476e-1f, 6.757530570e-2f);
  const float log_f = f + f * f * (f * tail - 0.5f);
  const float log = e * 0.693145752f + (log_f + e * 1.42860682e-6f);
  const float usual = x < kInfinity ? log : x;
  const float positive = x < 0 ? std::numeric_limits<float>::quiet_NaN() : usual;
  return x == 0 ? -kInfinity : positive;
}

// ln(1 + x) for x in [0, 1].
template <typename T>
inline T LogOnePlusUnit(T x) {
  return std::log1p(x);
}
inline float LogOnePlusUnit(float x) {
  const float sum = 1.0f + x;
  return Log(sum) + (x - (sum - 1.0f)) / sum;  // with what the addition rounded off
}

template <typename T>
inline T ExpMinusOne(T x) {
  return std::expm1(x);
}
inline float ExpMinusOne(float x) {
  const float small = x + x * x *
                              Polynomial(x, 0.5f, 1.666666716e-1f, 4.166623577e-2f, 8.333260193e-3f,
                                         1.394838560e-3f, 1.992095786e-4f);
  const float large = Exp(x) - 1.0f;
  return std::fabs(x) < 0.34f ? small : large;
}

template <typename T>
inline T Tanh(T x) {
  return std::tanh(x);
}
inline float Tanh(float x) {
  const float magnitude = std::fabs(x), z = x * x;
  const float small =
      magnitude + magnitude * z *
                      Polynomial(z, -3.333328366e-1f, 1.333149076e-1f, -5.374349654e-2f,
                                 2.065057866e-2f, -5.717036780e-3f);
  const float large = 1.0f - 2.0f / (Exp(2.0f * magnitude) + 1.0f);
  return std::copysign(magnitude < 0.625f ? small : large, x);
}

template <typename T>
inline T Erf(T x) {
  return std::erf(x);
}
// A polynomial below 1; 1 - e^-p above, with p a polynomial for -ln(erfc).
inline float Erf(float x) {
  const float magnitude = std::fabs(x), z = x * x;
  const float small =
      magnitude * Polynomial(z, 1.128379107e+0f, -3.761262596e-1f, 1.128360033e-1f,
                             -2.685444430e-2f, 5.189535208e-3f, -8.020841051e-4f, 7.889119297e-5f);
  const float cut = magnitude > 4.0f ? 4.0f : magnitude;
  const float p =
      Polynomial(cut, -1.884702506e-4f, 1.129580379e+0f, 6.332163811e-1f, 1.084221229e-1f,
                 -2.521035261e-2f, 4.205289297e-3f, -4.414735595e-4f, 2.169768777e-5f);
  return std::copysign(magnitude < 1.0f ? small : 1.0f - Exp(-p), x);
}

// The standard normal distribution at x: its density, and its share below x.
template <typename T>
struct Normal {
  T density, share;
};
template <typename T>
inline Normal<T> NormalAt(T x) {
  return {T(std::numbers::inv_sqrtpi / std::numbers::sqrt2) * std::exp(T(-0.5) * x * x),
          T(0.5) * std::erfc(x * T(-1 / std::numbers::sqrt2))};
}
// The share beyond u > 0 is e^(-u^2/2) times a smooth function, of which a polynomial of 1 / (1 +
// 0.35 u) is within 4e-8: one exponential for both. Right to 6 units and what the rounding of u^2/2
// makes of them; 0 from 13 on.
inline Normal<float> NormalAt(float x) {
  const float u = std::fabs(x);
  const auto [e, shifted] =
      ReduceExp(u > 13.0f ? -84.5f : -0.5f * u * u);  // where 2^n is a normal number
  const float fall =
      u > 13.0f ? 0.0f : e * std::bit_cast<float>((std::bit_cast<uint32_t>(shifted) + 127u) << 23);
  const float t = 1.0f / (1.0f + 0.35f * u);
  const float beyond = fall * t *
                       Polynomial(t, 1.396217117e-1f, 1.398567000e-1f, 1.198691215e-1f,
                                  1.053690657e-1f, -2.279043978e-2f, 1.587215657e-1f,
                                  -2.553268836e-1f, 1.437880360e-1f, -2.910889317e-2f);
  return {0.398942280f * fall, x < 0 ? beyond : 1.0f - beyond};
}

// 1 / (1 + e^-x)
template <typename T>
inline T Sigmoid(T x) {
  return 1 / (1 + Exp(-x));
}

// ln(1 + e^x)
template <typename T>
inline T Softplus(T x) {
  return (x < 0 ? T{0} : x) + LogOnePlusUnit(Exp(-std::fabs(x)));
}

// tanh(ln(1 + e^x)) = n / (n + 2) with n = e^x (e^x + 2); 1 beyond 20.
template <typename T>
inline T TanhOfSoftplus(T x) {
  return std::tanh(Softplus(x));
}
inline float TanhOfSoftplus(float x) {
  const float e = Exp(x > 20.0f ? 20.0f : x), n = e * (e + 2.0f);
  return n / (n + 2.0f);
}

// Sine and cosine of `turns` whole turns, for turns in [0, 1]: a quarter q and the rest t in [-1/2,
// 1/2] quarters.
inline void SinCosOfTurns(float turns, float* sine, float* cosine) {
  const float quarters = turns * 4.0f, shifted = quarters + kRound;
  const float t = quarters - (shifted - kRound), z = t * t;
  const uint32_t q = std::bit_cast<uint32_t>(shifted) & 3u;
  const float s = t * Polynomial(z, 1.570796371e+0f, -6.459640861e-1f, 7.969257981e-2f,
                                 -4.681226797e-3f, 1.581179822e-4f);
  const float c =
      Polynomial(z, 1.0f, -1.233700514e+0f, 2.536691725e-1f, -2.085979469e-2f, 9.030116489e-4f);
  const float first = (q & 1u) != 0 ? c : s, second = (q & 1u) != 0 ? s : c;
  *sine = q >= 2 ? -first : first;
  *cosine = (q == 1 || q == 2) ? -second : second;
}

}  // namespace caesura::math

#endif  // CAESURA_CORE_KERNELS_SIMD_FLOAT_MATH_H_
