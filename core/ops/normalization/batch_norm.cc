// SPDX-License-Identifier: Apache-2.0
// BatchNormalization (with training_mode), InstanceNormalization and GroupNormalization.
#include <cmath>

#include "core/base/status_macros.h"
#include "core/kernels/walks/channel_norm.h"
#include "core/kernels/kernel_registry.h"
#include "core/kernels/simd/best_isa.h"
#include "core/kernels/kernel.h"

namespace caesura {
namespace {

// The arguments of ScaleChannels: the mean, scale / sqrt(variance + epsilon), worked out in
// float64, and the bias.
template <typename Acc>
void FoldStatistics(int64_t channels, double epsilon, const double* mean, const double* variance,
                    const double* scale, const double* bias, Acc* m, Acc* a, Acc* b) {
  for (int64_t c = 0; c < channels; ++c) {
    m[c] = static_cast<Acc>(mean[c]);
    a[c] = static_cast<Acc>(scale[c] / std::sqrt(variance[c] + epsilon));
    b[c] = static_cast<Acc>(bias[c]);
  }
}

template <typename T>
void SetBatchNorm(KernelInfo& info, const BatchNormSpec& n) {
  using Acc = Accumulator<T>;
  const int64_t channels = n.view.channels;
  const size_t numbers = info.BookScratch(4 * channels * sizeof(double));
  const size_t folded = info.BookScratch(3 * channels * sizeof(Acc));
  const int threads = info.threads();
  info.SetCompute([=](KernelContext& context) {
    double* scale = context.Scratch<double>(numbers);
    double *bias = scale + channels, *mean = bias + channels, *variance = mean + channels;
    Acc *m = context.Scratch<Acc>(folded), *a = m + channels, *b = a + channels;
    const T* x = context.Input<T>(0);
    LoadFloats(n.parameter_type, context.Input<void>(1), channels, scale);
    LoadFloats(n.parameter_type, context.Input<void>(2), channels, bias);
    if (n.training) {
      ChannelMoments(threads, n.view, x, mean, variance);
      FoldStatistics(channels, n.epsilon, mean, variance, scale, bias, m, a, b);
      ScaleChannels(threads, n.view, x, m, a, b, context.Output<T>(0));
      auto update = [&](int input, double* current, bool wanted) {
        if (!wanted) return;
        LoadFloats(n.stat_type, context.Input<void>(input), channels, scale);
        for (int64_t c = 0; c < channels; ++c)
          current[c] = scale[c] * n.momentum + current[c] * (1 - n.momentum);
        StoreFloats(n.stat_type, current, channels, context.Output<void>(input - 2));
      };
      update(3, mean, n.wanted[1]);
      update(4, variance, n.wanted[2]);
      return;
    }
    LoadFloats(n.stat_type, context.Input<void>(3), channels, mean);
    LoadFloats(n.stat_type, context.Input<void>(4), channels, variance);
    FoldStatistics(channels, n.epsilon, mean, variance, scale, bias, m, a, b);
    ScaleChannels(threads, n.view, x, m, a, b, context.Output<T>(0));
  });
}

Status CreateBatchNorm(KernelInfo& info) {
  ASSIGN_OR_RETURN(const BatchNormSpec n, MakeBatchNormSpec(info));
  DispatchFloat(info.InputDType(0),
                [&](auto tag) { SetBatchNorm<typename decltype(tag)::type>(info, n); });
  return {};
}

// Normalises each of [N, groups] runs of X by its own statistics, then scales and shifts a channel.
// A channel takes parameter number channel / channels_per_parameter.
template <typename T>
void SetGroupNorm(KernelInfo& info, ChannelView view, int64_t groups,
                  int64_t channels_per_parameter) {
  using Acc = Accumulator<T>;
  const int64_t group_channels = view.channels / groups, size = group_channels * view.positions;
  const double epsilon = info.Attr<float>("epsilon", 1e-5f);
  const int threads = info.threads();
  info.SetCompute([=](KernelContext& context) {
    const T *x = context.Input<T>(0), *scale = context.Input<T>(1), *bias = context.Input<T>(2);
    T* y = context.Output<T>(0);
    if (size == 0) return;
    ParallelFor(threads, view.batch * groups, 1 + kParallelGrain / (4 * size + 1),
                [=](int64_t first, int64_t last) {
                  OnBestIsa([=] {
                    for (int64_t run = first; run < last; ++run) {
                      const Acc mean = RowSum(x + run * size, size) / static_cast<Acc>(size);
                      const double variance =
                          RowSquares(x + run * size, size, mean) / static_cast<double>(size);
                      const Acc inv_std = static_cast<Acc>(1 / std::sqrt(variance + epsilon));
                      for (int64_t g = 0; g < group_channels; ++g) {
                        const int64_t channel = run % groups * group_channels + g;
                        const Acc s = Acc(scale[channel / channels_per_parameter]) * inv_std;
                        const Acc t = bias[channel / channels_per_parameter];
                        const int64_t at = run * size + g * view.positions;
#pragma omp simd
                        for (int64_t i = 0; i < view.positions; ++i)
                          y[at + i] = T((Acc(x[at + i]) - mean) * s + t);
                      }
                    }
                  });
                });
  });
}

Status CreateRuns(KernelInfo& info, int64_t groups) {
  const Shape& x = info.InputShape(0);
  const ChannelView view = MakeChannelView(x);
  if (x.rank() < 2) return info.Invalid("X of rank 2 or more expected, got " + x.ToString());
  if (groups <= 0 || view.channels % groups != 0) {
    return info.Invalid("num_groups must divide the channels, got " + std::to_string(groups) +
                        " for " + x.ToString());
  }
  // Until opset 20 GroupNormalization had one scale and bias a group.
  const bool per_group = info.node().Is("GroupNormalization") && info.node().since_version() < 21 &&
                         info.node().since_version() > 0 && info.InputShape(1).elements() == groups;
  for (int i : {1, 2})
    RETURN_IF_ERROR(CheckChannelVector(info, i, per_group ? groups : view.channels));
  for (int i : {1, 2}) {
    if (info.InputDType(i) != info.InputDType(0))
      return info.Invalid("parameters of X's dtype expected");
  }
  info.SetOutput(0, info.InputDType(0), x);
  const int64_t share = per_group ? view.channels / groups : 1;
  DispatchFloat(info.InputDType(0), [&](auto tag) {
    SetGroupNorm<typename decltype(tag)::type>(info, view, groups, share);
  });
  return {};
}

Status CreateInstanceNorm(KernelInfo& info) {
  return CreateRuns(
      info, info.InputShape(0).rank() < 2 ? 0 : std::max<int64_t>(1, info.InputShape(0)[1]));
}

Status CreateGroupNorm(KernelInfo& info) {
  return CreateRuns(info, info.Attr<int64_t>("num_groups", 0));
}

}  // namespace

void RegisterBatchNorm(KernelRegistry& registry) {
  registry.Add({.op_type = "BatchNormalization",
                .types = kFloatTypes,
                .aliases = {MayReuse(0, 0)},
                .create = CreateBatchNorm});
  registry.Add({.op_type = "InstanceNormalization",
                .types = kFloatTypes,
                .aliases = {MayReuse(0, 0)},
                .create = CreateInstanceNorm});
  registry.Add({.op_type = "GroupNormalization",
                .types = kFloatTypes,
                .aliases = {MayReuse(0, 0)},
                .create = CreateGroupNorm});
}

}  // namespace caesura
