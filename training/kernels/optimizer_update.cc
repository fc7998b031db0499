// SPDX-License-Identifier: Apache-2.0
// SgdUpdate, AdamUpdate, AdamWUpdate, LionUpdate, RmspropUpdate: the formulas of torch.optim, operation by
// operation, so that rounding stays close too. g is the gradient, already scaled; t the number of the step.
#include <cmath>

#include "training/kernels/training_ops.h"
#include "training/kernels/update_group.h"

namespace caesura {
namespace {

// g += weight_decay p;  buf = momentum buf + (1 - dampening) g, at first g;  p -= lr buf, or with Nesterov
// p -= lr (g + momentum buf)
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
  const double momentum = Coefficient(info, "momentum", 0);
  const double taken = 1 - Coefficient(info, "dampening", 0);
  const double decay = Coefficient(info, "weight_decay", 0);
  const bool nesterov = info.Attr<int64_t>("nesterov", 0) != 0;
  if (momentum == 0) {
    return SetUpdate<0>(info, [decay](auto tag, const UpdateStep& step) {
      using A = typename decltype(tag)::type;
      return PlainSgdRule<A>{A(step.learning_rate), A(decay)};
    });
  }
  return SetUpdate<1>(info, [=](auto tag, const UpdateStep& step) {
    using A = typename decltype(tag)::type;
    return SgdRule<A>{A(step.learning_rate), A(decay), A(momentum), A(step.number == 1 ? 1 : taken), nesterov};
  });
}

// m = lerp(m, g, 1 - beta1);  v = beta2 v + (1 - beta2) g^2
// p -= lr / (1 - beta1^t) m / (sqrt(v) / sqrt(1 - beta2^t) + epsilon)
// Adam: g += weight_decay p before; AdamW: p *= 1 - lr weight_decay before.
template <typename A>
struct AdamRule {
  A l2, keep, one_minus_beta1, beta2, one_minus_beta2, correction, epsilon, step_size;
  void operator()(A& p, A g, A* state) const {
    g += l2 * p;
    p *= keep;
    state[0] = Lerp(state[0], g, one_minus_beta1);
    state[1] = beta2 * state[1] + one_minus_beta2 * g * g;
    p -= step_size * state[0] / (std::sqrt(state[1]) / correction + epsilon);
  }
};

Status CreateAdam(KernelInfo& info, bool decoupled, double default_decay) {
  const double beta1 = Coefficient(info, "beta1", 0.9), beta2 = Coefficient(info, "beta2", 0.999);
  const double epsilon = Coefficient(info, "epsilon", 1e-8);
  const double decay = Coefficient(info, "weight_decay", default_decay);
  return SetUpdate<2>(info, [=](auto tag, const UpdateStep& step) {
    using A = typename decltype(tag)::type;
    const double t = static_cast<double>(step.number);
    return AdamRule<A>{A(decoupled ? 0 : decay),
                       A(decoupled ? 1 - step.learning_rate * decay : 1),
                       A(1 - beta1),
                       A(beta2),
                       A(1 - beta2),
                       A(std::sqrt(1 - std::pow(beta2, t))),
                       A(epsilon),
                       A(step.learning_rate / (1 - std::pow(beta1, t)))};
  });
}
Status CreateAdamUpdate(KernelInfo& info) { return CreateAdam(info, false, 0); }
Status CreateAdamWUpdate(KernelInfo& info) { return CreateAdam(info, true, 1e-2); }

// Chen et al. 2023, algorithm 2: p *= 1 - lr weight_decay;  p -= lr sign(beta1 m + (1 - beta1) g);
// m = beta2 m + (1 - beta2) g
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
  const double beta1 = Coefficient(info, "beta1", 0.9), beta2 = Coefficient(info, "beta2", 0.99);
  const double decay = Coefficient(info, "weight_decay", 0);
  return SetUpdate<1>(info, [=](auto tag, const UpdateStep& step) {
    using A = typename decltype(tag)::type;
    const A keep = A(1 - step.learning_rate * decay);
    return LionRule<A>{A(step.learning_rate), keep, A(beta1), A(1 - beta1), A(beta2), A(1 - beta2)};
  });
}

// g += weight_decay p;  v = alpha v + (1 - alpha) g^2;  centered: a = lerp(a, g, 1 - alpha), v' = v - a^2
// d = g / (sqrt(v') + epsilon);  p -= lr d, or with momentum buf = momentum buf + d, p -= lr buf
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
Status CreateRmsprop(KernelInfo& info, double momentum) {
  const double alpha = Coefficient(info, "alpha", 0.99), epsilon = Coefficient(info, "epsilon", 1e-8);
  const double decay = Coefficient(info, "weight_decay", 0);
  return SetUpdate<1 + kCentered + kMomentum>(info, [=](auto tag, const UpdateStep& step) {
    using A = typename decltype(tag)::type;
    return RmspropRule<A, kCentered, kMomentum>{A(step.learning_rate), A(decay),   A(alpha),
                                                A(1 - alpha),          A(epsilon), A(momentum)};
  });
}

Status CreateRmspropUpdate(KernelInfo& info) {
  const double momentum = Coefficient(info, "momentum", 0);
  const bool centered = info.Attr<int64_t>("centered", 0) != 0;
  if (momentum == 0) return centered ? CreateRmsprop<true, false>(info, 0) : CreateRmsprop<false, false>(info, 0);
  return centered ? CreateRmsprop<true, true>(info, momentum) : CreateRmsprop<false, true>(info, momentum);
}

}  // namespace

void RegisterOptimizerKernels(KernelRegistry& registry) {
  const struct {
    const char* op_type;
    KernelFactory create;
  } updates[] = {
      {"SgdUpdate", CreateSgdUpdate},     {"AdamUpdate", CreateAdamUpdate}, {"AdamWUpdate", CreateAdamWUpdate},
      {"LionUpdate", CreateLionUpdate},   {"RmspropUpdate", CreateRmspropUpdate},
  };
  for (const auto& update : updates) {
    registry.Add({.op_type = update.op_type,
                  .domain = kTrainingDomain,
                  .types = kFloatTypes,
                  .typed_input = 3,
                  .create = update.create});
  }
  RegisterLambKernel(registry);
  RegisterGradientScaleKernels(registry);
  RegisterOnnxTrainingKernels(registry);
}

}  // namespace caesura
