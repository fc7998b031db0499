// SPDX-License-Identifier: Apache-2.0
// LambUpdate (You et al. 2020, algorithm 2, with bias correction):
//   m = beta1 m + (1 - beta1) g;  v = beta2 v + (1 - beta2) g^2
//   u = m / (1 - beta1^t) / (sqrt(v / (1 - beta2^t)) + epsilon) + weight_decay p
//   p -= lr ratio u, where ratio = |p| / |u| over the whole parameter, 1 where either norm is 0
#include <cmath>

#include "core/base/status_macros.h"
#include "training/kernels/optimizer/kernel_list.h"
#include "training/kernels/optimizer/update_group.h"
#include "training/kernels/training_ops.h"

namespace caesura {
namespace {

struct LambCoefficients {
  double beta1, beta2, epsilon, decay;
};

// u, from the states as they are stored.
template <typename A>
struct LambDirection {
  A correction1, correction2, epsilon, decay;

  template <typename T>
  void Fill(const T* __restrict p, const T* __restrict m, const T* __restrict v, int64_t count,
            A* __restrict u) const {
    const LambDirection own = *this;  // no store can change it: the compiler keeps it in registers
    for (int64_t i = 0; i < count; ++i) {
      const A denominator = std::sqrt(static_cast<A>(v[i]) / own.correction2) + own.epsilon;
      u[i] =
          static_cast<A>(m[i]) / own.correction1 / denominator + own.decay * static_cast<A>(p[i]);
    }
  }
};

// Updates m and v, then leaves the sums of squares of p and u of each block in `sums`.
template <typename T>
void UpdateMoments(const UpdateGroup& group, const LambCoefficients& c, const UpdateStep& step,
                   const LambDirection<Accumulator<T>>& direction, KernelContext& context,
                   double* sums) {
  using A = Accumulator<T>;
  const A taken1 = A(1 - c.beta1), beta2 = A(c.beta2), taken2 = A(1 - c.beta2);
  const auto rule = [=](A&, A g, A* state) {
    state[0] = Lerp(state[0], g, taken1);
    state[1] = beta2 * state[1] + taken2 * g * g;
  };
  group.Apply<T, 2>(context, step, [&](int) -> const auto& { return rule; });
  group.blocks().ForEach(group.threads(), UpdateGroup::kWork, [&](size_t b) {
    const ParameterBlocks::Block& block = group.blocks().blocks()[b];
    const T* p = group.Updated<T>(context, -1, block.tensor) + block.first;
    const T* m = group.Updated<T>(context, 0, block.tensor) + block.first;
    const T* v = group.Updated<T>(context, 1, block.tensor) + block.first;
    A u[ParameterBlocks::kBlockSize];
    direction.Fill(p, m, v, block.count, u);
    sums[2 * b] = SumOfSquares(p, block.count);
    sums[2 * b + 1] = SumOfSquares(u, block.count);
  });
}

// The ratio of each parameter, into `ratios`.
void TrustRatios(const UpdateGroup& group, const double* sums, double* ratios) {
  const auto& blocks = group.blocks().blocks();
  for (size_t b = 0; b < blocks.size();) {
    const int tensor = blocks[b].tensor;
    double parameter = 0, update = 0;
    for (; b < blocks.size() && blocks[b].tensor == tensor; ++b) {
      parameter += sums[2 * b];
      update += sums[2 * b + 1];
    }
    ratios[tensor] = parameter == 0 || update == 0 ? 1 : std::sqrt(parameter) / std::sqrt(update);
  }
}

template <typename T>
void RunLamb(const UpdateGroup& group, const LambCoefficients& c, const UpdateStep& step,
             double* scratch, KernelContext& context) {
  using A = Accumulator<T>;
  const double t = static_cast<double>(step.number);
  const LambDirection<A> direction{A(1 - std::pow(c.beta1, t)), A(1 - std::pow(c.beta2, t)),
                                   A(c.epsilon), A(c.decay)};
  double* ratios = scratch + 2 * group.blocks().blocks().size();
  UpdateMoments<T>(group, c, step, direction, context, scratch);
  TrustRatios(group, scratch, ratios);
  group.blocks().ForEach(group.threads(), UpdateGroup::kWork, [&](size_t b) {
    const ParameterBlocks::Block& block = group.blocks().blocks()[b];
    T* p = group.Updated<T>(context, -1, block.tensor) + block.first;
    const T* m = group.Updated<T>(context, 0, block.tensor) + block.first;
    const T* v = group.Updated<T>(context, 1, block.tensor) + block.first;
    A u[ParameterBlocks::kBlockSize];
    direction.Fill(p, m, v, block.count, u);
    const A rate = A(step.learning_rate * ratios[block.tensor]);
    for (int64_t i = 0; i < block.count; ++i)
      p[i] = static_cast<T>(static_cast<A>(p[i]) - rate * u[i]);
  });
}

Status CreateLambUpdate(KernelInfo& info) {
  const std::vector<Coefficient> coefficients = {
      {"beta1", 0.9}, {"beta2", 0.999}, {"epsilon", 1e-6}, {"weight_decay", 1e-2}};
  ASSIGN_OR_RETURN(const UpdateGroup group, UpdateGroup::Plan(info, 2, coefficients));
  const size_t scratch =
      info.BookScratch((2 * group.blocks().blocks().size() + group.count()) * sizeof(double));
  DispatchFloat(group.dtype(), [&](auto tag) {
    using T = typename decltype(tag)::type;
    info.SetCompute([group, scratch](KernelContext& context) -> Status {
      ASSIGN_OR_RETURN(const UpdateStep step, group.ReadStep(context));
      group.CopyToOutputs(context);
      const auto [beta1, beta2, epsilon, decay] = step.Get<4>();
      const LambCoefficients c{beta1, beta2, epsilon, decay};
      if (!step.skip) RunLamb<T>(group, c, step, context.Scratch<double>(scratch), context);
      return {};
    });
  });
  return {};
}

}  // namespace

void RegisterLambUpdate(KernelRegistry& registry) {
  AddUpdateKernels(registry, {{"LambUpdate", CreateLambUpdate}});
}

}  // namespace caesura
