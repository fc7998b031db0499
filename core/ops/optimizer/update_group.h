// SPDX-License-Identifier: Apache-2.0
// Optimizer updates (core/ops/optimizer/update_spec.h) on the CPU: the values of a step, and the
// loop over every element of every parameter.
#ifndef CAESURA_CORE_OPS_OPTIMIZER_UPDATE_GROUP_H_
#define CAESURA_CORE_OPS_OPTIMIZER_UPDATE_GROUP_H_

#include <algorithm>
#include <array>
#include <cstring>
#include <string>
#include <utility>
#include <vector>

#include "core/kernels/simd/best_isa.h"
#include "core/kernels/kernel.h"
#include "core/kernels/kernel_registry.h"
#include "core/ops/optimizer/update_rules.h"
#include "core/ops/optimizer/update_spec.h"
#include "core/ops/optimizer/parameter_blocks.h"

namespace caesura {

// The values that change from step to step.
struct Hyperparameters {
  double learning_rate = 0;
  double scale = 1;                         // of the gradients
  int64_t number = 1;                       // counts from 1
  bool skip = false;                        // nothing may change
  std::array<double, 6> coefficients = {};  // in the order in which the rule names them
};

class UpdateGroup {
 public:
  // Makes it from the node, as UpdateSpec::Make does.
  static Result<UpdateGroup> Plan(KernelInfo& info, int states,
                                  const std::vector<Coefficient>& coefficients, int scalars = 0);

  DType dtype() const { return spec_.dtype; }
  DType scalar_dtype() const { return spec_.scalar_dtype; }
  int count() const { return spec_.count; }
  int threads() const { return threads_; }
  const ParameterBlocks& blocks() const { return blocks_; }

  // Fails when the step is below 1. With the attribute skip_nonfinite a scale that is not finite
  // skips the step; with skip_infinite one that is infinite.
  Result<Hyperparameters> ReadHyperparameters(const KernelContext& context) const;
  // If outputs are not the buffers of their inputs (the plan could not share them), makes them
  // copies.
  void CopyToOutputs(const KernelContext& context) const;

  template <typename T>
  const T* Gradient(const KernelContext& context, int i) const {
    return context.Input<T>(spec_.Gradient(i));
  }
  // The parameter (state -1) or one of its states: input and output in one.
  template <typename T>
  T* Updated(const KernelContext& context, int state, int i) const {
    return context.Output<T>(spec_.Output(state, i));
  }

  // Calls rule(p, g, s) for each element, in the type that T accumulates in: p the parameter, g the
  // scaled gradient, s its `States` states after the scalars; the rule changes p and s.
  // rule_of(i): the rule of parameter i.
  template <typename T, int States, typename RuleOf>
  void Apply(const KernelContext& context, const Hyperparameters& step,
             const RuleOf& rule_of) const {
    using A = Accumulator<T>;
    const A scale = static_cast<A>(step.scale);
    blocks_.ForEach(threads_, kWork, [&](size_t b) {
      const ParameterBlocks::Block block = blocks_.blocks()[b];
      T* parameters = Updated<T>(context, -1, block.tensor) + block.first;
      const T* gradients = Gradient<T>(context, block.tensor) + block.first;
      T* states[3] = {};
      for (int k = 0; k < States; ++k)
        states[k] = Updated<T>(context, spec_.scalars + k, block.tensor) + block.first;
      auto loop = [&] {
        const auto own = rule_of(
            block.tensor);  // a copy that no store can change: the compiler keeps it in registers
        const int64_t count = block.count;
        T* __restrict p = parameters;
        const T* __restrict g = gradients;
        T* __restrict s0 = states[0], * __restrict s1 = states[1], * __restrict s2 = states[2];
        for (int64_t i = 0; i < count; ++i) {
          A parameter = static_cast<A>(p[i]);
          A state[3] = {};
          if constexpr (States > 0) state[0] = static_cast<A>(s0[i]);
          if constexpr (States > 1) state[1] = static_cast<A>(s1[i]);
          if constexpr (States > 2) state[2] = static_cast<A>(s2[i]);
          own(parameter, static_cast<A>(g[i]) * scale, state);
          p[i] = static_cast<T>(parameter);
          if constexpr (States > 0) s0[i] = static_cast<T>(state[0]);
          if constexpr (States > 1) s1[i] = static_cast<T>(state[1]);
          if constexpr (States > 2) s2[i] = static_cast<T>(state[2]);
        }
      };
      if constexpr (std::is_same_v<A, float>) {
        OnBestIsa(loop);
      } else {
        loop();
      }
    });
  }

  static constexpr int64_t kWork =
      4;  // operations an element, as many as vectors take side by side

 private:
  UpdateSpec spec_;
  int threads_ = 1;
  ParameterBlocks blocks_;
};

// Adds the kernels of update ops, by op type.
void AddUpdateKernels(KernelRegistry& registry,
                      const std::vector<std::pair<const char*, KernelFactory>>& kernels);

}  // namespace caesura

#endif  // CAESURA_CORE_OPS_OPTIMIZER_UPDATE_GROUP_H_
