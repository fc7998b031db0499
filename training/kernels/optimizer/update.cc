// SPDX-License-Identifier: Apache-2.0
// SgdUpdate, AdamUpdate, AdamWUpdate, LionUpdate, RmspropUpdate: the formulas of torch.optim,
// operation by operation, so that rounding stays close too. g is the gradient, already scaled; t
// the number of the step. The others are in adaptive.cc.
#include <cmath>

#include "training/kernels/optimizer/kernel_list.h"
#include "training/kernels/optimizer/update_group.h"
#include "training/kernels/training_ops.h"

namespace caesura {
namespace {

// g += weight_decay p;  buf = momentum buf + (1 - dampening) g, at first g;  p -= lr buf, or with
// Nesterov p -= lr (g + momentum buf)
template <typename A>
struct SgdRule {
  A rate, decay, momentum, taken;
  bool nesterov;
  void operator()(A& p, A g, A* state) const {
    g += decay * p;
    state[0] = momentum * state[0] + taken * g;
    p -= rate * (nesterov ? g + momentum * state[0] : state[0]);
  }
};

template <typename A>
struct PlainSgdRule {
  A rate, decay;
  void operator()(A& p, A g, A*) const { p -= rate * (g + decay * p); }
};

Status CreateSgdUpdate(KernelInfo& info) {
  const std::vector<Coefficient> coefficients = {
      {"momentum", 0}, {"dampening", 0}, {"weight_decay", 0}};
  const bool nesterov = info.Attr<int64_t>("nesterov", 0) != 0;
  const bool has_buffer = info.output_count() > info.Attr<int64_t>("count", 0);
  if (!has_buffer) {
    return SetUpdate<0>(info, coefficients, [](auto tag, const UpdateStep& step) {
      using A = typename decltype(tag)::type;
      return PlainSgdRule<A>{A(step.learning_rate), A(step.coefficients[2])};
    });
  }
  return SetUpdate<1>(info, coefficients, [=](auto tag, const UpdateStep& step) {
    using A = typename decltype(tag)::type;
    const auto [momentum, dampening, decay] = step.Get<3>();
    return SgdRule<A>{A(step.learning_rate), A(decay), A(momentum),
                      A(step.number == 1 ? 1 : 1 - dampening), nesterov};
  });
}

// m, v: AdamMoments, of which AdamW's decay is decoupled
// with amsgrad u = max(u, v), otherwise u = v
// p -= lr / (1 - beta1^t) m / (sqrt(u) / sqrt(1 - beta2^t) + epsilon)
template <typename A, bool kAmsgrad>
struct AdamRule {
  AdamMoments<A> moments;
  A correction, epsilon, step_size;
  void operator()(A& p, A g, A* state) const {
    moments(p, g, state);
    if constexpr (kAmsgrad) state[2] = Maximum(state[2], state[1]);
    p -= step_size * state[0] / (std::sqrt(state[kAmsgrad ? 2 : 1]) / correction + epsilon);
  }
};

template <bool kAmsgrad>
Status CreateAdam(KernelInfo& info, bool decoupled, double default_decay) {
  const std::vector<Coefficient> coefficients = {
      {"beta1", 0.9}, {"beta2", 0.999}, {"epsilon", 1e-8}, {"weight_decay", default_decay}};
  return SetUpdate<2 + kAmsgrad>(info, coefficients, [=](auto tag, const UpdateStep& step) {
    using A = typename decltype(tag)::type;
    const auto [beta1, beta2, epsilon, decay] = step.Get<4>();
    const double t = static_cast<double>(step.number);
    return AdamRule<A, kAmsgrad>{{step.learning_rate, decay, decoupled, beta1, beta2},
                                 A(std::sqrt(1 - std::pow(beta2, t))),
                                 A(epsilon),
                                 A(step.learning_rate / (1 - std::pow(beta1, t)))};
  });
}
Status CreateAdam(KernelInfo& info, bool decoupled, double default_decay) {
  const bool amsgrad = info.Attr<int64_t>("amsgrad", 0) != 0;
  return amsgrad ? CreateAdam<true>(info, decoupled, default_decay)
                 : CreateAdam<false>(info, decoupled, default_decay);
}
Status CreateAdamUpdate(KernelInfo& info) { return CreateAdam(info, false, 0); }
Status CreateAdamWUpdate(KernelInfo& info) { return CreateAdam(info, true, 1e-2); }

// Chen et al. 2023, algorithm 2:
//   p *= 1 - lr weight_decay;  p -= lr sign(beta1 m + (1 - beta1) g);  m = beta2 m + (1 - beta2) g
template <typename A>
struct LionRule {
  A rate, keep, beta1, one_minus_beta1, beta2, one_minus_beta2;
  void operator()(A& p, A g, A* state) const {
    const A direction = beta1 * state[0] + one_minus_beta1 * g;
    const A sign = static_cast<A>(direction > A(0)) - static_cast<A>(direction < A(0));
    // A NaN must not pass for "no direction".
    p = p * keep - rate * (direction == direction ? sign : direction);
    state[0] = beta2 * state[0] + one_minus_beta2 * g;
  }
};

Status CreateLionUpdate(KernelInfo& info) {
  const std::vector<Coefficient> coefficients = {
      {"beta1", 0.9}, {"beta2", 0.99}, {"weight_decay", 0}};
  return SetUpdate<1>(info, coefficients, [](auto tag, const UpdateStep& step) {
    using A = typename decltype(tag)::type;
    const auto [beta1, beta2, decay] = step.Get<3>();
    const A keep = A(1 - step.learning_rate * decay);
    return LionRule<A>{A(step.learning_rate), keep, A(beta1), A(1 - beta1), A(beta2), A(1 - beta2)};
  });
}

// g += weight_decay p;  v = alpha v + (1 - alpha) g^2;  v' = v
// centered: a = lerp(a, g, 1 - alpha);  v' = v - a^2
// d = g / (sqrt(v') + epsilon);  p -= lr d, or with momentum buf = momentum buf + d;  p -= lr buf
// States: v, then a if centered, then buf if there is momentum.
template <typename A, bool kCentered, bool kMomentum>
struct RmspropRule {
  A rate, decay, alpha, one_minus_alpha, epsilon, momentum;
  void operator()(A& p, A g, A* state) const {
    g += decay * p;
    state[0] = alpha * state[0] + one_minus_alpha * g * g;
    A variance = state[0];
    if constexpr (kCentered) {
      state[1] = Lerp(state[1], g, one_minus_alpha);
      variance -= state[1] * state[1];
    }
    const A denominator = std::sqrt(variance) + epsilon;
    if constexpr (kMomentum) {
      A& buffer = state[kCentered ? 2 : 1];
      buffer = momentum * buffer + g / denominator;
      p -= rate * buffer;
    } else {
      p -= rate * g / denominator;
    }
  }
};

template <bool kCentered, bool kMomentum>
Status CreateRmsprop(KernelInfo& info) {
  const std::vector<Coefficient> coefficients = {
      {"alpha", 0.99}, {"epsilon", 1e-8}, {"momentum", 0}, {"weight_decay", 0}};
  return SetUpdate<1 + kCentered + kMomentum>(
      info, coefficients, [](auto tag, const UpdateStep& step) {
        using A = typename decltype(tag)::type;
        const auto [alpha, epsilon, momentum, decay] = step.Get<4>();
        return RmspropRule<A, kCentered, kMomentum>{A(step.learning_rate), A(decay),   A(alpha),
                                                    A(1 - alpha),          A(epsilon), A(momentum)};
      });
}

Status CreateRmspropUpdate(KernelInfo& info) {
  const bool centered = info.Attr<int64_t>("centered", 0) != 0;
  const bool has_buffer = info.output_count() > (2 + centered) * info.Attr<int64_t>("count", 0);
  if (has_buffer)
    return centered ? CreateRmsprop<true, true>(info) : CreateRmsprop<false, true>(info);
  return centered ? CreateRmsprop<true, false>(info) : CreateRmsprop<false, false>(info);
}

}  // namespace

void RegisterOptimizerUpdate(KernelRegistry& registry) {
  AddUpdateKernels(registry, {{"SgdUpdate", CreateSgdUpdate},
                              {"AdamUpdate", CreateAdamUpdate},
                              {"AdamWUpdate", CreateAdamWUpdate},
                              {"LionUpdate", CreateLionUpdate},
                              {"RmspropUpdate", CreateRmspropUpdate}});
}

}  // namespace caesura
