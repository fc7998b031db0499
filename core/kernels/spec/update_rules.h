// SPDX-License-Identifier: Apache-2.0
// The rules by which optimizers change one element: the formulas of torch.optim, operation by
// operation, so that rounding stays close too. This text is compiled twice: for the CPU, and by
// NVRTC as part of CUDA kernels (core/kernels/cuda/update.cc), where there is no standard library.
//
// A rule is made once a step, by Of(step, flag), with
//   step.learning_rate, step.number (t, counts from 1), step.coefficients (as update_spec.cc names
//   them)
// and called with a parameter p, its gradient g, already scaled, and its states. A is the type that
// is computed in.
#ifndef CAESURA_CORE_KERNELS_SPEC_UPDATE_RULES_H_
#define CAESURA_CORE_KERNELS_SPEC_UPDATE_RULES_H_

#if defined(__CUDACC_RTC__) || defined(CAESURA_EMULATOR)
#define CAESURA_RULE __device__ inline
#else
#include <cmath>
#define CAESURA_RULE inline
#endif

namespace caesura {

CAESURA_RULE float Root(float x) { return sqrtf(x); }
CAESURA_RULE double Root(double x) { return sqrt(x); }

// True but for infinities and NaN.
CAESURA_RULE bool IsFinite(double x) { return x - x == 0; }

// a + weight * (b - a), rounded as torch.lerp does.
template <typename A>
CAESURA_RULE A Lerp(A a, A b, A weight) {
  return weight < A(0.5) ? a + weight * (b - a) : b - (b - a) * (A(1) - weight);
}

// The larger one, or NaN where either is, as torch.maximum.
template <typename A>
CAESURA_RULE A Maximum(A a, A b) {
  return a != a || a > b ? a : b;
}

// The factor of all gradients: factor * min(1, max_norm / (factor * norm + 1e-6)); NaN stays
// NaN. skip_nonfinite: NaN also for an infinite norm, so that updates with that attribute skip the
// step.
CAESURA_RULE double ClippedScale(double norm, double factor, double max_norm, bool skip_nonfinite) {
  if (skip_nonfinite && !IsFinite(norm)) return norm - norm;
  const double ratio = IsFinite(max_norm) ? max_norm / (factor * norm + 1e-6) : 1;
  return factor * (ratio > 1 ? 1 : ratio);
}

template <typename A>
struct PlainSgdRule {
  static constexpr int kStates = 0;
  A rate, decay;

  template <typename Step>
  CAESURA_RULE static PlainSgdRule Of(const Step& step, bool) {
    return {A(step.learning_rate), A(step.coefficients[2])};
  }
  CAESURA_RULE void operator()(A& p, A g, A*) const { p -= rate * (g + decay * p); }
};

// g += weight_decay p;  buf = momentum buf + (1 - dampening) g, at first g;  p -= lr buf, or with
// Nesterov (the flag) p -= lr (g + momentum buf)
template <typename A>
struct SgdRule {
  static constexpr int kStates = 1;
  A rate, decay, momentum, taken;
  bool nesterov;

  template <typename Step>
  CAESURA_RULE static SgdRule Of(const Step& step, bool nesterov) {
    const double dampening = step.coefficients[1];
    return {A(step.learning_rate), A(step.coefficients[2]), A(step.coefficients[0]),
            A(step.number == 1 ? 1 : 1 - dampening), nesterov};
  }
  CAESURA_RULE void operator()(A& p, A g, A* state) const {
    g += decay * p;
    state[0] = momentum * state[0] + taken * g;
    p -= rate * (nesterov ? g + momentum * state[0] : state[0]);
  }
};

// Weight decay, and the two moments of Adam and its kin, which are states 0 and 1:
//   g += decay p, or decoupled p *= 1 - rate decay
//   m = lerp(m, g, 1 - beta1);  v = beta2 v + (1 - beta2) g^2
template <typename A>
struct AdamMoments {
  A l2, keep, one_minus_beta1, beta2, one_minus_beta2;

  CAESURA_RULE static AdamMoments Of(double rate, double decay, bool decoupled, double beta1,
                                     double beta2) {
    return {A(decoupled ? 0 : decay), A(decoupled ? 1 - rate * decay : 1), A(1 - beta1), A(beta2),
            A(1 - beta2)};
  }
  CAESURA_RULE void operator()(A& p, A& g, A* state) const {
    g += l2 * p;
    p *= keep;
    state[0] = Lerp(state[0], g, one_minus_beta1);
    state[1] = beta2 * state[1] + one_minus_beta2 * g * g;
  }
};

// m, v: AdamMoments, whose decay is decoupled by the flag
// with amsgrad u = max(u, v), otherwise u = v
// p -= lr / (1 - beta1^t) m / (sqrt(u) / sqrt(1 - beta2^t) + epsilon)
template <typename A, bool kAmsgrad>
struct AnyAdamRule {
  static constexpr int kStates = kAmsgrad ? 3 : 2;
  AdamMoments<A> moments;
  A correction, epsilon, step_size;

  template <typename Step>
  CAESURA_RULE static AnyAdamRule Of(const Step& step, bool decoupled) {
    const double beta1 = step.coefficients[0], beta2 = step.coefficients[1];
    const double t = static_cast<double>(step.number);
    return {AdamMoments<A>::Of(step.learning_rate, step.coefficients[3], decoupled, beta1, beta2),
            A(Root(1 - pow(beta2, t))), A(step.coefficients[2]),
            A(step.learning_rate / (1 - pow(beta1, t)))};
  }
  CAESURA_RULE void operator()(A& p, A g, A* state) const {
    moments(p, g, state);
    if constexpr (kAmsgrad) state[2] = Maximum(state[2], state[1]);
    p -= step_size * state[0] / (Root(state[kAmsgrad ? 2 : 1]) / correction + epsilon);
  }
};
template <typename A>
using AdamRule = AnyAdamRule<A, false>;
template <typename A>
using AmsgradRule = AnyAdamRule<A, true>;

// Chen et al. 2023, algorithm 2:
//   p *= 1 - lr weight_decay;  p -= lr sign(beta1 m + (1 - beta1) g);  m = beta2 m + (1 - beta2) g
template <typename A>
struct LionRule {
  static constexpr int kStates = 1;
  A rate, keep, beta1, one_minus_beta1, beta2, one_minus_beta2;

  template <typename Step>
  CAESURA_RULE static LionRule Of(const Step& step, bool) {
    const double beta1 = step.coefficients[0], beta2 = step.coefficients[1];
    return {A(step.learning_rate),
            A(1 - step.learning_rate * step.coefficients[2]),
            A(beta1),
            A(1 - beta1),
            A(beta2),
            A(1 - beta2)};
  }
  CAESURA_RULE void operator()(A& p, A g, A* state) const {
    const A direction = beta1 * state[0] + one_minus_beta1 * g;
    const A sign = static_cast<A>(direction > A(0)) - static_cast<A>(direction < A(0));
    // A NaN must not pass for "no direction".
    p = p * keep - rate * (direction == direction ? sign : direction);
    state[0] = beta2 * state[0] + one_minus_beta2 * g;
  }
};

// g += weight_decay p;  v = alpha v + (1 - alpha) g^2;  v' = v
// centered: a = lerp(a, g, 1 - alpha);  v' = v - a^2
// d = g / (sqrt(v') + epsilon);  p -= lr d, or with momentum buf = momentum buf + d;  p -= lr buf
// States: v, then a if centered, then buf if there is momentum.
template <typename A, bool kCentered, bool kMomentum>
struct AnyRmspropRule {
  static constexpr int kStates = 1 + kCentered + kMomentum;
  A rate, decay, alpha, one_minus_alpha, epsilon, momentum;

  template <typename Step>
  CAESURA_RULE static AnyRmspropRule Of(const Step& step, bool) {
    const double alpha = step.coefficients[0];
    return {A(step.learning_rate), A(step.coefficients[3]), A(alpha),
            A(1 - alpha),          A(step.coefficients[1]), A(step.coefficients[2])};
  }
  CAESURA_RULE void operator()(A& p, A g, A* state) const {
    g += decay * p;
    state[0] = alpha * state[0] + one_minus_alpha * g * g;
    A variance = state[0];
    if constexpr (kCentered) {
      state[1] = Lerp(state[1], g, one_minus_alpha);
      variance -= state[1] * state[1];
    }
    const A denominator = Root(variance) + epsilon;
    if constexpr (kMomentum) {
      A& buffer = state[kCentered ? 2 : 1];
      buffer = momentum * buffer + g / denominator;
      p -= rate * buffer;
    } else {
      p -= rate * g / denominator;
    }
  }
};
template <typename A>
using RmspropRule = AnyRmspropRule<A, false, false>;
template <typename A>
using CenteredRmspropRule = AnyRmspropRule<A, true, false>;
template <typename A>
using MomentumRmspropRule = AnyRmspropRule<A, false, true>;
template <typename A>
using CenteredMomentumRmspropRule = AnyRmspropRule<A, true, true>;

}  // namespace caesura

#endif  // CAESURA_CORE_KERNELS_SPEC_UPDATE_RULES_H_
