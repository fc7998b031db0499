// SPDX-License-Identifier: Apache-2.0
// NAdamUpdate, RAdamUpdate, AdamaxUpdate, AdagradUpdate, AdadeltaUpdate, AsgdUpdate, RpropUpdate:
// the formulas of torch.optim (as of PyTorch 2.13), operation by operation. g is the gradient,
// already scaled; t the number of the step. With weight_decay g += weight_decay p comes first.
#include <cmath>

#include "training/kernels/optimizer/kernel_list.h"
#include "training/kernels/optimizer/update_group.h"
#include "training/kernels/training_ops.h"

namespace caesura {
namespace {

// Dozat 2016:  mu(t) = beta1 (1 - 0.96^(t momentum_decay) / 2);  M *= mu(t);  m, v: AdamMoments
// d = sqrt(v / (1 - beta2^t)) + epsilon
// p -= lr (1 - mu(t)) / (1 - M) g / d;  p -= lr mu(t + 1) / (1 - M mu(t + 1)) m / d
template <typename A>
struct NAdamRule {
  AdamMoments<A> moments;
  A correction, epsilon, of_gradient, of_average;
  void operator()(A& p, A g, A* state) const {
    moments(p, g, state);
    const A denominator = std::sqrt(state[1] / correction) + epsilon;
    p -= of_gradient * g / denominator;
    p -= of_average * state[0] / denominator;
  }
};

Status CreateNAdamUpdate(KernelInfo& info) {
  const std::vector<Coefficient> coefficients = {{"beta1", 0.9},
                                                 {"beta2", 0.999},
                                                 {"epsilon", 1e-8},
                                                 {"weight_decay", 0},
                                                 {"momentum_decay", 4e-3}};
  const bool decoupled = info.Attr<int64_t>("decoupled_weight_decay", 0) != 0;
  const auto make_rule = [=](auto tag, const UpdateStep& step, std::array<ScalarState, 1> scalars) {
    using A = typename decltype(tag)::type;
    const auto [beta1, beta2, epsilon, decay, momentum_decay] = step.Get<5>();
    const double t = static_cast<double>(step.number), rate = step.learning_rate;
    const double mu = beta1 * (1 - 0.5 * std::pow(0.96, t * momentum_decay));
    const double next = beta1 * (1 - 0.5 * std::pow(0.96, (t + 1) * momentum_decay));
    scalars[0].Set(scalars[0].Get() * scalars[0].Rounded(mu));
    const double product = scalars[0].Get();
    return NAdamRule<A>{AdamMoments<A>::Of(rate, decay, decoupled, beta1, beta2),
                        A(1 - std::pow(beta2, t)), A(epsilon), A(rate * (1 - mu) / (1 - product)),
                        A(rate * next / (1 - product * next))};
  };
  return SetUpdateWithScalars<1, 2>(info, coefficients, make_rule);
}

// Liu et al. 2020, algorithm 2:  m, v: AdamMoments
// R = 2 / (1 - beta2) - 1;  r = R - 2 t beta2^t / (1 - beta2^t)
// p -= lr m / (1 - beta1^t), times where r > 5
//   sqrt(1 - beta2^t) / (sqrt(v) + epsilon) sqrt((r - 4) (r - 2) R / ((R - 4) (R - 2) r))
template <typename A>
struct RAdamRule {
  AdamMoments<A> moments;
  A correction, rate, epsilon, adaptive, rectification;
  bool is_rectified;
  void operator()(A& p, A g, A* state) const {
    moments(p, g, state);
    const A step = state[0] / correction * rate;
    p -= is_rectified ? step * (adaptive / (std::sqrt(state[1]) + epsilon)) * rectification : step;
  }
};

Status CreateRAdamUpdate(KernelInfo& info) {
  const std::vector<Coefficient> coefficients = {
      {"beta1", 0.9}, {"beta2", 0.999}, {"epsilon", 1e-8}, {"weight_decay", 0}};
  const bool decoupled = info.Attr<int64_t>("decoupled_weight_decay", 0) != 0;
  return SetUpdate<2>(info, coefficients, [=](auto tag, const UpdateStep& step) {
    using A = typename decltype(tag)::type;
    const auto [beta1, beta2, epsilon, decay] = step.Get<4>();
    const double t = static_cast<double>(step.number), power = std::pow(beta2, t);
    const double most = 2 / (1 - beta2) - 1, length = most - 2 * t * power / (1 - power);
    const bool is_rectified = length > 5;
    const double rectification =
        std::sqrt((length - 4) * (length - 2) * most / ((most - 4) * (most - 2) * length));
    return RAdamRule<A>{AdamMoments<A>::Of(step.learning_rate, decay, decoupled, beta1, beta2),
                        A(1 - std::pow(beta1, t)),
                        A(step.learning_rate),
                        A(epsilon),
                        A(std::sqrt(1 - power)),
                        A(is_rectified ? rectification : 1),
                        is_rectified};
  });
}

// Kingma and Ba 2015, section 7.1:
//   m as Adam's;  u = max(beta2 u, |g| + epsilon);  p -= lr / (1 - beta1^t) m / u
template <typename A>
struct AdamaxRule {
  A l2, one_minus_beta1, beta2, epsilon, rate;
  void operator()(A& p, A g, A* state) const {
    g += l2 * p;
    state[0] = Lerp(state[0], g, one_minus_beta1);
    state[1] = Maximum(state[1] * beta2, std::abs(g) + epsilon);
    p -= rate * state[0] / state[1];
  }
};

Status CreateAdamaxUpdate(KernelInfo& info) {
  const std::vector<Coefficient> coefficients = {
      {"beta1", 0.9}, {"beta2", 0.999}, {"epsilon", 1e-8}, {"weight_decay", 0}};
  return SetUpdate<2>(info, coefficients, [](auto tag, const UpdateStep& step) {
    using A = typename decltype(tag)::type;
    const auto [beta1, beta2, epsilon, decay] = step.Get<4>();
    const double rate =
        step.learning_rate / (1 - std::pow(beta1, static_cast<double>(step.number)));
    return AdamaxRule<A>{A(decay), A(1 - beta1), A(beta2), A(epsilon), A(rate)};
  });
}

// Duchi et al. 2011:  s += g^2;  p -= lr / (1 + (t - 1) lr_decay) g / (sqrt(s) + epsilon)
template <typename A>
struct AdagradRule {
  A l2, epsilon, rate;
  void operator()(A& p, A g, A* state) const {
    g += l2 * p;
    state[0] += g * g;
    p -= rate * g / (std::sqrt(state[0]) + epsilon);
  }
};

Status CreateAdagradUpdate(KernelInfo& info) {
  const std::vector<Coefficient> coefficients = {
      {"lr_decay", 0}, {"weight_decay", 0}, {"epsilon", 1e-10}};
  return SetUpdate<1>(info, coefficients, [](auto tag, const UpdateStep& step) {
    using A = typename decltype(tag)::type;
    const auto [lr_decay, decay, epsilon] = step.Get<3>();
    const double rate = step.learning_rate / (1 + static_cast<double>(step.number - 1) * lr_decay);
    return AdagradRule<A>{A(decay), A(epsilon), A(rate)};
  });
}

// Zeiler 2012:  v = rho v + (1 - rho) g^2;  d = sqrt(u + epsilon) / sqrt(v + epsilon) g
// u = rho u + (1 - rho) d^2;  p -= lr d
template <typename A>
struct AdadeltaRule {
  A l2, rho, one_minus_rho, epsilon, rate;
  void operator()(A& p, A g, A* state) const {
    g += l2 * p;
    state[0] = rho * state[0] + one_minus_rho * g * g;
    const A delta = std::sqrt(state[1] + epsilon) / std::sqrt(state[0] + epsilon) * g;
    state[1] = rho * state[1] + one_minus_rho * delta * delta;
    p -= rate * delta;
  }
};

Status CreateAdadeltaUpdate(KernelInfo& info) {
  const std::vector<Coefficient> coefficients = {
      {"rho", 0.9}, {"epsilon", 1e-6}, {"weight_decay", 0}};
  return SetUpdate<2>(info, coefficients, [](auto tag, const UpdateStep& step) {
    using A = typename decltype(tag)::type;
    const auto [rho, epsilon, decay] = step.Get<3>();
    return AdadeltaRule<A>{A(decay), A(rho), A(1 - rho), A(epsilon), A(step.learning_rate)};
  });
}

// Polyak and Juditsky 1992, with the rates of Bottou's SGD:
//   p *= 1 - lambd eta;  p -= eta g;  ax += (p - ax) mu
//   then  eta = lr / (1 + lambd lr t)^alpha;  mu = 1 / max(1, t - t0)
template <typename A>
struct AsgdRule {
  A l2, keep, eta, mu;
  bool is_last;  // ax is p itself
  void operator()(A& p, A g, A* state) const {
    g += l2 * p;
    p *= keep;
    p -= eta * g;
    state[0] = is_last ? p : state[0] + (p - state[0]) * mu;
  }
};

Status CreateAsgdUpdate(KernelInfo& info) {
  const std::vector<Coefficient> coefficients = {
      {"lambd", 1e-4}, {"alpha", 0.75}, {"t0", 1e6}, {"weight_decay", 0}};
  const bool rounds = info.Attr<int64_t>("float64_rates", 0) == 0;
  const auto make_rule = [=](auto tag, const UpdateStep& step, std::array<ScalarState, 2> scalars) {
    using A = typename decltype(tag)::type;
    const auto [lambd, alpha, t0, decay] = step.Get<4>();
    const double t = static_cast<double>(step.number), rate = step.learning_rate;
    const double eta = scalars[0].Get(), mu = scalars[1].Get();
    const auto set = [=](ScalarState scalar, double value) {
      scalar.Set(rounds ? static_cast<float>(value) : value);
    };
    set(scalars[0], rate / std::pow(1 + lambd * rate * t, alpha));
    set(scalars[1], 1 / std::max(1.0, t - t0));
    return AsgdRule<A>{A(decay), A(1 - lambd * eta), A(eta), A(mu), mu == 1};
  };
  return SetUpdateWithScalars<2, 1>(info, coefficients, make_rule);
}

// Riedmiller and Braun 1993:
//   s = eta_plus, eta_minus or 1 as the gradient keeps its sign, changes it, or is or was 0
//   size = clamp(s size);  g = 0 where its sign has changed;  p -= sign(g) size;  prev = g
template <typename A>
struct RpropRule {
  A minus, plus, least, most;
  void operator()(A& p, A g, A* state) const {
    const A kept = g * state[0];
    state[1] = std::min(std::max(state[1] * (kept > 0   ? plus
                                             : kept < 0 ? minus
                                                        : A(1)),
                                 least),
                        most);
    if (kept < 0) g = 0;
    p -= static_cast<A>((g > 0) - (g < 0)) * state[1];
    state[0] = g;
  }
};

Status CreateRpropUpdate(KernelInfo& info) {
  const std::vector<Coefficient> coefficients = {
      {"eta_minus", 0.5}, {"eta_plus", 1.2}, {"step_size_min", 1e-6}, {"step_size_max", 50}};
  return SetUpdate<2>(info, coefficients, [](auto tag, const UpdateStep& step) {
    using A = typename decltype(tag)::type;
    const auto [minus, plus, least, most] = step.Get<4>();
    return RpropRule<A>{A(minus), A(plus), A(least), A(most)};
  });
}

}  // namespace

void RegisterAdaptiveUpdate(KernelRegistry& registry) {
  AddUpdateKernels(registry, {{"NAdamUpdate", CreateNAdamUpdate},
                              {"RAdamUpdate", CreateRAdamUpdate},
                              {"AdamaxUpdate", CreateAdamaxUpdate},
                              {"AdagradUpdate", CreateAdagradUpdate},
                              {"AdadeltaUpdate", CreateAdadeltaUpdate},
                              {"AsgdUpdate", CreateAsgdUpdate},
                              {"RpropUpdate", CreateRpropUpdate}});
}

}  // namespace caesura
