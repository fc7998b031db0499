// SPDX-License-Identifier: Apache-2.0
// LambUpdate: the rule of core/ops/optimizer/update_rules.h, with sums over each parameter.
#include "core/base/status_macros.h"
#include "core/kernels/kernel_registry.h"
#include "core/ops/optimizer/update_group.h"

namespace caesura {
namespace {

// u of `count` elements.
template <typename T, typename A>
void FillDirection(const LambRule<A>& rule, const T* __restrict p, const T* __restrict m,
                   const T* __restrict v, int64_t count, A* __restrict u) {
  const LambRule<A> own = rule;  // no store can change it: the compiler keeps it in registers
  for (int64_t i = 0; i < count; ++i)
    u[i] = own.Direction(static_cast<A>(p[i]), static_cast<A>(m[i]), static_cast<A>(v[i]));
}

// Updates m and v, then leaves the sums of squares of p and u of each block in `sums`.
template <typename T>
void UpdateMoments(const UpdateGroup& group, const Hyperparameters& step,
                   const LambRule<Accumulator<T>>& rule, KernelContext& context, double* sums) {
  using A = Accumulator<T>;
  group.Apply<T, 2>(context, step, [&](int) -> const auto& { return rule; });
  group.blocks().ForEach(group.threads(), UpdateGroup::kWork, [&](size_t b) {
    const ParameterBlocks::Block& block = group.blocks().blocks()[b];
    const T* p = group.Updated<T>(context, -1, block.tensor) + block.first;
    const T* m = group.Updated<T>(context, 0, block.tensor) + block.first;
    const T* v = group.Updated<T>(context, 1, block.tensor) + block.first;
    A u[ParameterBlocks::kBlockSize];
    FillDirection(rule, p, m, v, block.count, u);
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
    ratios[tensor] = TrustRatio(parameter, update);
  }
}

template <typename T>
void RunLamb(const UpdateGroup& group, const Hyperparameters& step, double* scratch,
             KernelContext& context) {
  using A = Accumulator<T>;
  const auto rule = LambRule<A>::Of(step, false);
  double* ratios = scratch + 2 * group.blocks().blocks().size();
  UpdateMoments<T>(group, step, rule, context, scratch);
  TrustRatios(group, scratch, ratios);
  group.blocks().ForEach(group.threads(), UpdateGroup::kWork, [&](size_t b) {
    const ParameterBlocks::Block& block = group.blocks().blocks()[b];
    T* p = group.Updated<T>(context, -1, block.tensor) + block.first;
    const T* m = group.Updated<T>(context, 0, block.tensor) + block.first;
    const T* v = group.Updated<T>(context, 1, block.tensor) + block.first;
    A u[ParameterBlocks::kBlockSize];
    FillDirection(rule, p, m, v, block.count, u);
    const A rate = A(step.learning_rate * ratios[block.tensor]);
    for (int64_t i = 0; i < block.count; ++i)
      p[i] = static_cast<T>(static_cast<A>(p[i]) - rate * u[i]);
  });
}

Status CreateLambUpdate(KernelInfo& info) {
  const RuleChoice choice = ChooseRule(info);
  ASSIGN_OR_RETURN(const UpdateGroup group,
                   UpdateGroup::Plan(info, choice.states, choice.coefficients));
  const size_t scratch =
      info.BookScratch((2 * group.blocks().blocks().size() + group.count()) * sizeof(double));
  DispatchFloat(group.dtype(), [&](auto tag) {
    using T = typename decltype(tag)::type;
    info.SetCompute([group, scratch](KernelContext& context) -> Status {
      ASSIGN_OR_RETURN(const Hyperparameters step, group.ReadHyperparameters(context));
      group.CopyToOutputs(context);
      if (!step.skip) RunLamb<T>(group, step, context.Scratch<double>(scratch), context);
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
