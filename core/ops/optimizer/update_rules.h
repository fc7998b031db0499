// SPDX-License-Identifier: Apache-2.0
// The rules by which optimizers change one element: the formulas of torch.optim, operation by
// operation, so that rounding stays close too. This text is compiled twice: for the CPU, and by
// NVRTC as part of CUDA kernels (core/ops/optimizer/cuda_update.cc), where there is no standard
// library.
//
// A rule is made once a step, by Of(step, flag), with
//   step.learning_rate, step.number (t, counts from 1), step.coefficients (as update_spec.cc names
//   them)
// and called with a parameter p, its gradient g, already scaled, and its states. A is the type that
// is computed in. Where each parameter has scalars as state beside (kScalars of them, of float or
// double), a rule is made for each parameter, by Of(step, flag, scalars), which changes them.
#ifndef CAESURA_CORE_OPS_OPTIMIZER_UPDATE_RULES_H_
#define CAESURA_CORE_OPS_OPTIMIZER_UPDATE_RULES_H_

#if defined(__CUDACC__) || defined(CAESURA_EMULATOR)
#define CAESURA_RULE __device__ inline
#else
#include <cmath>
#define CAESURA_RULE inline
#endif

namespace caesura {

CAESURA_RULE float Root(float x) { return sqrtf(x); }
CAESURA_RULE double Root(double x) { return sqrt(x); }
CAESURA_RULE float Magnitude(float x) { return fabsf(x); }
CAESURA_RULE double Magnitude(double x) { return fabs(x); }

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

// g + decay p, the gradient of a loss with the penalty decay |p|^2 / 2. A decay of 0 is no penalty,
// for infinite p too (0 times infinity is NaN): torch.optim leaves such a decay out. The sum is
// made in either case, because a loop with a choice between two results is one of vectors.
template <typename A>
CAESURA_RULE A WithDecay(A g, A decay, A p) {
  const A sum = g + decay * p;
  return decay == A(0) ? g : sum;
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

  template <typename Hyperparameters>
  CAESURA_RULE static PlainSgdRule Of(const Hyperparameters& step, bool) {
    return {A(step.learning_rate), A(step.coefficients[2])};
  }
  CAESURA_RULE void operator()(A& p, A g, A*) const { p -= rate * WithDecay(g, decay, p); }
};

// g += weight_decay p;  buf = momentum buf + (1 - dampening) g, at first g;  p -= lr buf, or with
// Nesterov (the flag) p -= lr (g + momentum buf)
template <typename A>
struct SgdRule {
  static constexpr int kStates = 1;
  A rate, decay, momentum, taken;
  bool nesterov;

  template <typename Hyperparameters>
  CAESURA_RULE static SgdRule Of(const Hyperparameters& step, bool nesterov) {
    const double dampening = step.coefficients[1];
    return {A(step.learning_rate), A(step.coefficients[2]), A(step.coefficients[0]),
            A(step.number == 1 ? 1 : 1 - dampening), nesterov};
  }
  CAESURA_RULE void operator()(A& p, A g, A* state) const {
    g = WithDecay(g, decay, p);
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
    g = WithDecay(g, l2, p);
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

  template <typename Hyperparameters>
  CAESURA_RULE static AnyAdamRule Of(const Hyperparameters& step, bool decoupled) {
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

  template <typename Hyperparameters>
  CAESURA_RULE static LionRule Of(const Hyperparameters& step, bool) {
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

  template <typename Hyperparameters>
  CAESURA_RULE static AnyRmspropRule Of(const Hyperparameters& step, bool) {
    const double alpha = step.coefficients[0];
    return {A(step.learning_rate), A(step.coefficients[3]), A(alpha),
            A(1 - alpha),          A(step.coefficients[1]), A(step.coefficients[2])};
  }
  CAESURA_RULE void operator()(A& p, A g, A* state) const {
    g = WithDecay(g, decay, p);
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

// Dozat 2016:  mu(t) = beta1 (1 - 0.96^(t momentum_decay) / 2);  M *= mu(t);  m, v: AdamMoments,
// whose decay is decoupled by the flag
// d = sqrt(v / (1 - beta2^t)) + epsilon
// p -= lr (1 - mu(t)) / (1 - M) g / d;  p -= lr mu(t + 1) / (1 - M mu(t + 1)) m / d
template <typename A>
struct NAdamRule {
  static constexpr int kStates = 2, kScalars = 1;
  AdamMoments<A> moments;
  A correction, epsilon, of_gradient, of_average;

  template <typename Hyperparameters, typename S>
  CAESURA_RULE static NAdamRule Of(const Hyperparameters& step, bool decoupled, S* scalars) {
    const double beta1 = step.coefficients[0], beta2 = step.coefficients[1];
    const double momentum_decay = step.coefficients[4];
    const double t = static_cast<double>(step.number), rate = step.learning_rate;
    const double mu = beta1 * (1 - 0.5 * pow(0.96, t * momentum_decay));
    const double next = beta1 * (1 - 0.5 * pow(0.96, (t + 1) * momentum_decay));
    scalars[0] = scalars[0] * static_cast<S>(mu);
    const double product = static_cast<double>(scalars[0]);
    return {AdamMoments<A>::Of(rate, step.coefficients[3], decoupled, beta1, beta2),
            A(1 - pow(beta2, t)), A(step.coefficients[2]), A(rate * (1 - mu) / (1 - product)),
            A(rate * next / (1 - product * next))};
  }
  CAESURA_RULE void operator()(A& p, A g, A* state) const {
    moments(p, g, state);
    const A denominator = Root(state[1] / correction) + epsilon;
    p -= of_gradient * g / denominator;
    p -= of_average * state[0] / denominator;
  }
};

// Liu et al. 2020, algorithm 2:  m, v: AdamMoments, whose decay is decoupled by the flag
// R = 2 / (1 - beta2) - 1;  r = R - 2 t beta2^t / (1 - beta2^t)
// p -= lr m / (1 - beta1^t), times where r > 5
//   sqrt(1 - beta2^t) / (sqrt(v) + epsilon) sqrt((r - 4) (r - 2) R / ((R - 4) (R - 2) r))
template <typename A>
struct RAdamRule {
  static constexpr int kStates = 2;
  AdamMoments<A> moments;
  A correction, rate, epsilon, adaptive, rectification;
  bool is_rectified;

  template <typename Hyperparameters>
  CAESURA_RULE static RAdamRule Of(const Hyperparameters& step, bool decoupled) {
    const double beta1 = step.coefficients[0], beta2 = step.coefficients[1];
    const double t = static_cast<double>(step.number), power = pow(beta2, t);
    const double most = 2 / (1 - beta2) - 1, length = most - 2 * t * power / (1 - power);
    const bool is_rectified = length > 5;
    const double rectification =
        is_rectified ? Root((length - 4) * (length - 2) * most / ((most - 4) * (most - 2) * length))
                     : 1;
    return {AdamMoments<A>::Of(step.learning_rate, step.coefficients[3], decoupled, beta1, beta2),
            A(1 - pow(beta1, t)),
            A(step.learning_rate),
            A(step.coefficients[2]),
            A(Root(1 - power)),
            A(rectification),
            is_rectified};
  }
  CAESURA_RULE void operator()(A& p, A g, A* state) const {
    moments(p, g, state);
    const A step = state[0] / correction * rate;
    p -= is_rectified ? step * (adaptive / (Root(state[1]) + epsilon)) * rectification : step;
  }
};

// Kingma and Ba 2015, section 7.1:
//   m as Adam's;  u = max(beta2 u, |g| + epsilon);  p -= lr / (1 - beta1^t) m / u
template <typename A>
struct AdamaxRule {
  static constexpr int kStates = 2;
  A l2, one_minus_beta1, beta2, epsilon, rate;

  template <typename Hyperparameters>
  CAESURA_RULE static AdamaxRule Of(const Hyperparameters& step, bool) {
    const double beta1 = step.coefficients[0], t = static_cast<double>(step.number);
    return {A(step.coefficients[3]), A(1 - beta1), A(step.coefficients[1]), A(step.coefficients[2]),
            A(step.learning_rate / (1 - pow(beta1, t)))};
  }
  CAESURA_RULE void operator()(A& p, A g, A* state) const {
    g = WithDecay(g, l2, p);
    state[0] = Lerp(state[0], g, one_minus_beta1);
    state[1] = Maximum(state[1] * beta2, Magnitude(g) + epsilon);
    p -= rate * state[0] / state[1];
  }
};

// Duchi et al. 2011:  s += g^2;  p -= lr / (1 + (t - 1) lr_decay) g / (sqrt(s) + epsilon)
template <typename A>
struct AdagradRule {
  static constexpr int kStates = 1;
  A l2, epsilon, rate;

  template <typename Hyperparameters>
  CAESURA_RULE static AdagradRule Of(const Hyperparameters& step, bool) {
    const double before = static_cast<double>(step.number - 1);
    return {A(step.coefficients[1]), A(step.coefficients[2]),
            A(step.learning_rate / (1 + before * step.coefficients[0]))};
  }
  CAESURA_RULE void operator()(A& p, A g, A* state) const {
    g = WithDecay(g, l2, p);
    state[0] += g * g;
    p -= rate * g / (Root(state[0]) + epsilon);
  }
};

// Zeiler 2012:  v = rho v + (1 - rho) g^2;  d = sqrt(u + epsilon) / sqrt(v + epsilon) g
// u = rho u + (1 - rho) d^2;  p -= lr d
template <typename A>
struct AdadeltaRule {
  static constexpr int kStates = 2;
  A l2, rho, one_minus_rho, epsilon, rate;

  template <typename Hyperparameters>
  CAESURA_RULE static AdadeltaRule Of(const Hyperparameters& step, bool) {
    const double rho = step.coefficients[0];
    return {A(step.coefficients[2]), A(rho), A(1 - rho), A(step.coefficients[1]),
            A(step.learning_rate)};
  }
  CAESURA_RULE void operator()(A& p, A g, A* state) const {
    g = WithDecay(g, l2, p);
    state[0] = rho * state[0] + one_minus_rho * g * g;
    const A delta = Root(state[1] + epsilon) / Root(state[0] + epsilon) * g;
    state[1] = rho * state[1] + one_minus_rho * delta * delta;
    p -= rate * delta;
  }
};

// Polyak and Juditsky 1992, with the rates of Bottou's SGD; eta and mu are scalars:
//   p *= 1 - lambd eta;  p -= eta g;  ax += (p - ax) mu
//   then  eta = lr / (1 + lambd lr t)^alpha;  mu = 1 / max(1, t - t0), both rounded to float unless
//   the flag is set
template <typename A>
struct AsgdRule {
  static constexpr int kStates = 1, kScalars = 2;
  A l2, keep, eta, mu;
  bool is_last;  // ax is p itself

  template <typename S>
  CAESURA_RULE static S Rounded(double value, bool is_wide) {
    return static_cast<S>(is_wide ? value : static_cast<double>(static_cast<float>(value)));
  }
  template <typename Hyperparameters, typename S>
  CAESURA_RULE static AsgdRule Of(const Hyperparameters& step, bool is_wide, S* scalars) {
    const double lambd = step.coefficients[0], rate = step.learning_rate;
    const double t = static_cast<double>(step.number), averaged = t - step.coefficients[2];
    const double eta = static_cast<double>(scalars[0]), mu = static_cast<double>(scalars[1]);
    scalars[0] = Rounded<S>(rate / pow(1 + lambd * rate * t, step.coefficients[1]), is_wide);
    scalars[1] = Rounded<S>(1 / (averaged > 1 ? averaged : 1), is_wide);
    return {A(step.coefficients[3]), A(1 - lambd * eta), A(eta), A(mu), mu == 1};
  }
  CAESURA_RULE void operator()(A& p, A g, A* state) const {
    g = WithDecay(g, l2, p);
    p *= keep;
    p -= eta * g;
    state[0] = is_last ? p : state[0] + (p - state[0]) * mu;
  }
};

// Riedmiller and Braun 1993:
//   s = eta_plus, eta_minus or 1 as the gradient keeps its sign, changes it, or is or was 0
//   size = clamp(s size);  g = 0 where its sign has changed;  p -= sign(g) size;  prev = g
template <typename A>
struct RpropRule {
  static constexpr int kStates = 2;
  A minus, plus, least, most;

  template <typename Hyperparameters>
  CAESURA_RULE static RpropRule Of(const Hyperparameters& step, bool) {
    return {A(step.coefficients[0]), A(step.coefficients[1]), A(step.coefficients[2]),
            A(step.coefficients[3])};
  }
  CAESURA_RULE void operator()(A& p, A g, A* state) const {
    const A kept = g * state[0];
    const A wanted = state[1] * (kept > A(0) ? plus : kept < A(0) ? minus : A(1));
    const A some = wanted < least ? least : wanted;
    state[1] = most < some ? most : some;
    if (kept < A(0)) g = A(0);
    p -= (static_cast<A>(g > A(0)) - static_cast<A>(g < A(0))) * state[1];
    state[0] = g;
  }
};

// You et al. 2020, algorithm 2, with bias correction. Called, it changes the moments only:
//   m = lerp(m, g, 1 - beta1);  v = beta2 v + (1 - beta2) g^2
// Then, with m and v as they are stored,
//   u = Direction: m / (1 - beta1^t) / (sqrt(v / (1 - beta2^t)) + epsilon) + weight_decay p
//   p -= lr TrustRatio(|p|^2, |u|^2) u, with sums over the whole parameter
template <typename A>
struct LambRule {
  static constexpr int kStates = 2;
  A one_minus_beta1, beta2, one_minus_beta2, correction1, correction2, epsilon, decay;

  template <typename Hyperparameters>
  CAESURA_RULE static LambRule Of(const Hyperparameters& step, bool) {
    const double beta1 = step.coefficients[0], beta2 = step.coefficients[1];
    const double t = static_cast<double>(step.number);
    return {A(1 - beta1),           A(beta2),
            A(1 - beta2),           A(1 - pow(beta1, t)),
            A(1 - pow(beta2, t)),   A(step.coefficients[2]),
            A(step.coefficients[3])};
  }
  CAESURA_RULE void operator()(A&, A g, A* state) const {
    state[0] = Lerp(state[0], g, one_minus_beta1);
    state[1] = beta2 * state[1] + one_minus_beta2 * g * g;
  }
  CAESURA_RULE A Direction(A p, A m, A v) const {
    return WithDecay(m / correction1 / (Root(v / correction2) + epsilon), decay, p);
  }
};

// |p| / |u|, or 1 where either is 0 or |p| is infinite: the paper bounds the ratio, and an infinite
// one would make every other element infinite or NaN.
CAESURA_RULE double TrustRatio(double square_of_p, double square_of_u) {
  const bool is_infinite = square_of_p > 1 && !IsFinite(square_of_p);  // NaN stays NaN
  return square_of_p == 0 || square_of_u == 0 || is_infinite
             ? 1
             : Root(square_of_p) / Root(square_of_u);
}

}  // namespace caesura

#endif  // CAESURA_CORE_OPS_OPTIMIZER_UPDATE_RULES_H_
