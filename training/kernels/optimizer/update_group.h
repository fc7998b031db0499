// SPDX-License-Identifier: Apache-2.0
// Optimizer updates (core/kernels/spec/update_spec.h) on the CPU: the values of a step, and the
// loop over every element of every parameter.
#ifndef CAESURA_TRAINING_KERNELS_OPTIMIZER_UPDATE_GROUP_H_
#define CAESURA_TRAINING_KERNELS_OPTIMIZER_UPDATE_GROUP_H_

#include <algorithm>
#include <array>
#include <cstring>
#include <string>
#include <utility>
#include <vector>

#include "core/kernels/cpu/simd/best_isa.h"
#include "core/kernels/kernel.h"
#include "core/kernels/kernel_context.h"
#include "core/kernels/kernel_registry.h"
#include "core/kernels/spec/update_rules.h"
#include "core/kernels/spec/update_spec.h"
#include "training/kernels/optimizer/parameter_blocks.h"

namespace caesura {

// The values that change from step to step.
struct UpdateStep {
  double learning_rate = 0;
  double scale = 1;                         // of the gradients
  int64_t number = 1;                       // counts from 1
  bool skip = false;                        // nothing may change
  std::array<double, 6> coefficients = {};  // in the order in which the rule names them

  template <size_t N>
  std::array<double, N> Get() const {
    std::array<double, N> out;
    std::copy_n(coefficients.begin(), N, out.begin());
    return out;
  }
};

// A scalar of a parameter's state, float32 or float64.
class ScalarState {
 public:
  ScalarState() = default;
  ScalarState(void* data, DType dtype) : data_(data), is_float64_(dtype == DType::kFloat64) {}

  double Get() const {
    return is_float64_ ? *static_cast<double*>(data_) : *static_cast<float*>(data_);
  }
  void Set(double value) const {
    if (is_float64_) {
      *static_cast<double*>(data_) = value;
    } else {
      *static_cast<float*>(data_) = static_cast<float>(value);
    }
  }
  // The value as the scalar's dtype has it.
  double Rounded(double value) const { return is_float64_ ? value : static_cast<float>(value); }

 private:
  void* data_ = nullptr;
  bool is_float64_ = false;
};

class UpdateGroup {
 public:
  // As UpdateSpec::Make.
  static Result<UpdateGroup> Plan(KernelInfo& info, int states,
                                  const std::vector<Coefficient>& coefficients, int scalars = 0);

  DType dtype() const { return spec_.dtype; }
  int count() const { return spec_.count; }
  int threads() const { return threads_; }
  const ParameterBlocks& blocks() const { return blocks_; }

  // Fails when the step is below 1. With the attribute skip_nonfinite a scale that is not finite
  // skips the step.
  Result<UpdateStep> ReadStep(const KernelContext& context) const;
  // Where outputs are not the buffers of their inputs (the plan could not share them), makes them
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
  ScalarState Scalar(const KernelContext& context, int state, int i) const {
    return {Updated<char>(context, state, i), spec_.scalar_dtype};
  }

  // Calls rule(p, g, s) for each element, in the type that T accumulates in: p the parameter, g the
  // scaled gradient, s its `States` states after the scalars; the rule changes p and s.
  // rule_of(i): the rule of parameter i.
  template <typename T, int States, typename RuleOf>
  void Apply(const KernelContext& context, const UpdateStep& step, const RuleOf& rule_of) const {
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

// Finishes a factory: `make_rule(TypeTag<A>, const UpdateStep&)` gives the rule of one step.
template <int States, typename MakeRule>
Status SetUpdate(KernelInfo& info, const std::vector<Coefficient>& coefficients,
                 MakeRule make_rule) {
  auto planned = UpdateGroup::Plan(info, States, coefficients);
  if (!planned.ok()) return planned.status();
  DispatchFloat(planned->dtype(), [&](auto tag) {
    using T = typename decltype(tag)::type;
    info.SetCompute([group = *std::move(planned), make_rule](KernelContext& context) -> Status {
      Result<UpdateStep> step = group.ReadStep(context);
      if (!step.ok()) return step.status();
      group.CopyToOutputs(context);
      if (step->skip) return Status();
      const auto rule = make_rule(TypeTag<Accumulator<T>>{}, *step);
      group.Apply<T, States>(context, *step, [&](int) -> const auto& { return rule; });
      return Status();
    });
  });
  return {};
}

// The same with `Scalars` scalars of each parameter: `make_rule(TypeTag<A>, const UpdateStep&,
// std::array<ScalarState, Scalars>)` gives the rule of one parameter and changes its scalars.
template <int Scalars, int States, typename MakeRule>
Status SetUpdateWithScalars(KernelInfo& info, const std::vector<Coefficient>& coefficients,
                            MakeRule make_rule) {
  auto planned = UpdateGroup::Plan(info, Scalars + States, coefficients, Scalars);
  if (!planned.ok()) return planned.status();
  DispatchFloat(planned->dtype(), [&](auto tag) {
    using T = typename decltype(tag)::type;
    using Rule = decltype(make_rule(TypeTag<Accumulator<T>>{}, UpdateStep{},
                                    std::array<ScalarState, Scalars>{}));
    const size_t scratch = info.BookScratch(planned->count() * sizeof(Rule));
    info.SetCompute(
        [group = *std::move(planned), make_rule, scratch](KernelContext& context) -> Status {
          Result<UpdateStep> step = group.ReadStep(context);
          if (!step.ok()) return step.status();
          group.CopyToOutputs(context);
          if (step->skip) return Status();
          Rule* rules = context.Scratch<Rule>(scratch);
          for (int i = 0; i < group.count(); ++i) {
            std::array<ScalarState, Scalars> scalars;
            for (int k = 0; k < Scalars; ++k) scalars[k] = group.Scalar(context, k, i);
            rules[i] = make_rule(TypeTag<Accumulator<T>>{}, *step, scalars);
          }
          group.Apply<T, States>(context, *step, [&](int i) -> const auto& { return rules[i]; });
          return Status();
        });
  });
  return {};
}

}  // namespace caesura

#endif  // CAESURA_TRAINING_KERNELS_OPTIMIZER_UPDATE_GROUP_H_
