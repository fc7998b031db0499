// SPDX-License-Identifier: Apache-2.0
// CausalConvWithState: a depthwise convolution over time that sees the past only, with the last k -
// 1 inputs carried from call to call.
#include <cmath>

#include "core/base/status_macros.h"
#include "core/kernels/kernel_registry.h"
#include "core/kernels/simd/parallel.h"
#include "core/kernels/kernel.h"
#include "core/kernels/factory_checks.h"

namespace caesura {
namespace {

struct CausalConv {
  int64_t batch, channels, length, taps;
  bool silu, has_bias, has_past, has_state;
};

template <typename T>
void SetCausalConv(KernelInfo& info, const CausalConv& g) {
  using Acc = Accumulator<T>;
  const int threads = info.threads();
  info.SetCompute([=](KernelContext& context) {
    const T *x = context.Input<T>(0), *w = context.Input<T>(1);
    const T* bias = g.has_bias ? context.Input<T>(2) : nullptr;
    const T* past = g.has_past ? context.Input<T>(3) : nullptr;
    T* y = context.Output<T>(0);
    T* state = g.has_state ? context.Output<T>(1) : nullptr;
    const int64_t carried = g.taps - 1;
    ParallelFor(threads, g.batch * g.channels, 1 + kParallelGrain / (g.length * g.taps + 1),
                [=](int64_t first, int64_t last) {
                  for (int64_t row = first; row < last; ++row) {
                    const T *in = x + row * g.length, *kernel = w + row % g.channels * g.taps;
                    // Position t of the carried inputs followed by this call's.
                    auto at = [&](int64_t t) -> Acc {
                      if (t >= carried) return in[t - carried];
                      return past == nullptr ? Acc(0) : Acc(past[row * carried + t]);
                    };
                    for (int64_t t = 0; t < g.length; ++t) {
                      Acc sum = bias == nullptr ? Acc(0) : Acc(bias[row % g.channels]);
                      for (int64_t k = 0; k < g.taps; ++k) sum += Acc(kernel[k]) * at(t + k);
                      y[row * g.length + t] = T(g.silu ? sum / (1 + std::exp(-sum)) : sum);
                    }
                    for (int64_t t = 0; state != nullptr && t < carried; ++t)
                      state[row * carried + t] = T(at(g.length + t));
                  }
                });
  });
}

Status CreateCausalConv(KernelInfo& info) {
  RETURN_IF_ERROR(CheckRank(info, 0, 3));
  RETURN_IF_ERROR(CheckRank(info, 1, 3));
  const Shape &x = info.InputShape(0), &w = info.InputShape(1);
  const std::string activation = info.Attr<std::string>("activation", "none");
  if (activation != "none" && activation != "silu" && activation != "swish") {
    return info.Invalid("activation must be none, silu or swish, got '" + activation + "'");
  }
  const CausalConv g{x[0],
                     x[1],
                     x[2],
                     w[2],
                     activation != "none",
                     info.HasInput(2),
                     info.HasInput(3),
                     info.HasOutput(1)};
  if (w[0] != g.channels || w[1] != 1 || g.taps < 1) {
    return info.Invalid("weights [channels, 1, k] expected, got " + w.ToString() + " for X " +
                        x.ToString());
  }
  if (g.has_bias && info.InputShape(2) != Shape{g.channels})
    return info.Invalid("one bias a channel expected");
  const Shape state{g.batch, g.channels, g.taps - 1};
  if (g.has_past && info.InputShape(3) != state) {
    return info.Invalid("past_state " + state.ToString() + " expected, got " +
                        info.InputShape(3).ToString());
  }
  info.SetOutput(0, info.InputDType(0), x);
  info.SetOutput(1, info.InputDType(0), state);
  DispatchFloat(info.InputDType(0),
                [&](auto tag) { SetCausalConv<typename decltype(tag)::type>(info, g); });
  return {};
}

}  // namespace

void RegisterConvCausal(KernelRegistry& registry) {
  registry.Add(
      {.op_type = "CausalConvWithState", .types = kFloatTypes, .create = CreateCausalConv});
}

}  // namespace caesura
