// SPDX-License-Identifier: Apache-2.0
// Adagrad, Adam and Momentum of ONNX's domain ai.onnx.preview.training: (R, T, tensors...,
// gradients...,
// states...) -> (tensors'..., states'...). Unlike our own updates they are pure functions. The
//     formulas stand in
// the schemas.
#include <cmath>

#include "core/base/status_macros.h"
#include "core/kernels/kernel_registry.h"
#include "core/kernels/simd/parallel.h"
#include "core/kernels/kernel.h"
#include "core/ops/optimizer/update_rules.h"

namespace caesura {
namespace {

constexpr char kOnnxTrainingDomain[] = "ai.onnx.preview.training";

struct OnnxUpdate {
  int count = 0, states = 0, threads = 1;
  DType rate_dtype = DType::kFloat32;
  std::vector<DType> dtypes;  // of each optimised tensor
  std::vector<int64_t> elements;
  int outputs = 0;  // of the node, which may end before the last state

  double Rate(const KernelContext& context) const {
    return rate_dtype == DType::kFloat64 ? *context.Input<double>(0) : *context.Input<float>(0);
  }
};

bool IsFloat(DType dtype) { return dtype == DType::kFloat32 || dtype == DType::kFloat64; }

Result<OnnxUpdate> PlanUpdate(KernelInfo& info, int states) {
  const int tensors = static_cast<int>(info.node().inputs().size()) - 2;
  if (tensors < 2 + states || tensors % (2 + states) != 0) {
    return info.Invalid("takes R, T and " + std::to_string(2 + states) +
                        " inputs for each optimised tensor");
  }
  OnnxUpdate update{tensors / (2 + states), states, info.threads(), info.InputDType(0), {}, {}};
  update.outputs = info.output_count();
  if (update.outputs > update.count * (1 + states)) return info.Invalid("has too many outputs");
  const bool scalars = info.HasInput(0) && info.HasInput(1) && IsFloat(update.rate_dtype) &&
                       info.InputDType(1) == DType::kInt64 && info.InputShape(0).elements() == 1 &&
                       info.InputShape(1).elements() == 1;
  if (!scalars) return info.Invalid("R must be one float32 or float64, T one int64");
  for (int i = 0; i < update.count; ++i) {
    const DType dtype = info.InputDType(2 + i);
    for (int kind = 0; kind < 2 + states; ++kind) {
      const int input = 2 + kind * update.count + i;
      const bool fits = info.HasInput(input) && IsFloat(dtype) && info.InputDType(input) == dtype &&
                        info.InputShape(input) == info.InputShape(2 + i);
      if (!fits) return info.Invalid("tensor, gradient and states must have one dtype and shape");
    }
    update.dtypes.push_back(dtype);
    update.elements.push_back(info.InputShape(2 + i).elements());
    for (int kind = 0; kind < 1 + states; ++kind) {
      info.SetOutput(kind * update.count + i, dtype, info.InputShape(2 + i));
    }
  }
  return update;
}

// Calls rule(x, g, s) for every element and stores what it makes of x and of the states s; absent
// outputs are left.
template <typename T, int States, typename Rule>
void UpdateTensor(const OnnxUpdate& update, int i, const Rule& rule, KernelContext& context) {
  const T* x = context.Input<T>(2 + i);
  const T* g = context.Input<T>(2 + update.count + i);
  const T* states[States];
  T* outputs[1 + States];
  for (int s = 0; s < States; ++s) states[s] = context.Input<T>(2 + (2 + s) * update.count + i);
  for (int o = 0; o < 1 + States; ++o) {
    const int output = o * update.count + i;
    outputs[o] = output < update.outputs ? context.Output<T>(output) : nullptr;
  }
  ParallelFor(update.threads, update.elements[i], kParallelGrain / 16,
              [&](int64_t first, int64_t last) {
                for (int64_t e = first; e < last; ++e) {
                  T value = x[e], state[States];
                  for (int s = 0; s < States; ++s) state[s] = states[s][e];
                  rule(value, g[e], state);
                  if (outputs[0] != nullptr) outputs[0][e] = value;
                  for (int s = 0; s < States; ++s) {
                    if (outputs[1 + s] != nullptr) outputs[1 + s][e] = state[s];
                  }
                }
              });
}

// `make_rule(TypeTag<T>, R, T)` gives the rule of one step.
template <int States, typename MakeRule>
Status SetUpdate(KernelInfo& info, MakeRule make_rule) {
  ASSIGN_OR_RETURN(const OnnxUpdate update, PlanUpdate(info, States));
  info.SetCompute([update, make_rule](KernelContext& context) {
    const double rate = update.Rate(context);
    const int64_t step = *context.Input<int64_t>(1);
    for (int i = 0; i < update.count; ++i) {
      DispatchDType<float, double>(update.dtypes[i], [&](auto tag) {
        using T = typename decltype(tag)::type;
        UpdateTensor<T, States>(update, i, make_rule(tag, rate, step), context);
      });
    }
  });
  return {};
}

Status CreateAdagrad(KernelInfo& info) {
  const double norm = info.Attr<float>("norm_coefficient", 0.0f);
  const double decay = info.Attr<float>("decay_factor", 0.0f);
  const double epsilon = info.Attr<float>("epsilon", 1e-6f);
  return SetUpdate<1>(info, [=](auto tag, double rate, int64_t step) {
    using T = typename decltype(tag)::type;
    const T r = T(rate / (1 + static_cast<double>(step) * decay));
    return [=](T& x, T g, T* h) {
      g = WithDecay(g, T(norm), x);
      h[0] += g * g;
      x -= r * g / (std::sqrt(h[0]) + T(epsilon));
    };
  });
}

Status CreateAdam(KernelInfo& info) {
  const double alpha = info.Attr<float>("alpha", 0.9f), beta = info.Attr<float>("beta", 0.999f);
  const double norm = info.Attr<float>("norm_coefficient", 0.0f);
  const double norm_post = info.Attr<float>("norm_coefficient_post", 0.0f);
  const double epsilon = info.Attr<float>("epsilon", 1e-6f);
  return SetUpdate<2>(info, [=](auto tag, double rate, int64_t step) {
    using T = typename decltype(tag)::type;
    const double t = static_cast<double>(step);
    const T r =
        T(step > 0 ? rate * std::sqrt(1 - std::pow(beta, t)) / (1 - std::pow(alpha, t)) : rate);
    return [=](T& x, T g, T* state) {
      g = WithDecay(g, T(norm), x);
      state[0] = T(alpha) * state[0] + T(1 - alpha) * g;
      state[1] = T(beta) * state[1] + T(1 - beta) * g * g;
      x = T(1 - norm_post) * (x - r * state[0] / (std::sqrt(state[1]) + T(epsilon)));
    };
  });
}

Status CreateMomentum(KernelInfo& info) {
  const double alpha = info.Attr<float>("alpha", 0.0f), beta = info.Attr<float>("beta", 1.0f);
  const double norm = info.Attr<float>("norm_coefficient", 0.0f);
  const std::string mode = info.Attr<std::string>("mode", "standard");
  if (mode != "standard" && mode != "nesterov") return info.Invalid("unknown mode " + mode);
  return SetUpdate<1>(info,
                      [=, nesterov = mode == "nesterov"](auto tag, double rate, int64_t step) {
                        using T = typename decltype(tag)::type;
                        return [=, adjusted = T(step > 0 ? beta : 1)](T& x, T g, T* v) {
                          g = WithDecay(g, T(norm), x);
                          v[0] = T(alpha) * v[0] + adjusted * g;
                          x -= T(rate) * (nesterov ? g + T(alpha) * v[0] : v[0]);
                        };
                      });
}

}  // namespace

void RegisterOnnxTraining(KernelRegistry& registry) {
  const DTypeSet rates = {DType::kFloat32, DType::kFloat64};
  registry.Add({.op_type = "Adagrad",
                .domain = kOnnxTrainingDomain,
                .types = rates,
                .create = CreateAdagrad});
  registry.Add(
      {.op_type = "Adam", .domain = kOnnxTrainingDomain, .types = rates, .create = CreateAdam});
  registry.Add({.op_type = "Momentum",
                .domain = kOnnxTrainingDomain,
                .types = rates,
                .create = CreateMomentum});
}

}  // namespace caesura
