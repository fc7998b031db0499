// SPDX-License-Identifier: Apache-2.0
// InstanceNormalizationGrad and GroupNormalizationGrad (dY, X, scale) -> dX, dScale, dB. A run is
// the elements that share statistics; with x the normalised run, g = dY * scale:
//   dX = inv_std * (g - mean(g) - x * mean(g x)), dScale = sum of dY x and dB = sum of dY over a
//   channel's elements
#include <algorithm>
#include <cmath>

#include "core/base/status_macros.h"
#include "core/kernels/walks/channel_norm.h"
#include "core/kernels/kernel_registry.h"
#include "core/kernels/simd/best_isa.h"
#include "core/kernels/kernel.h"

namespace caesura {
namespace {

struct GroupGrad {
  ChannelView view;
  int64_t groups;
  double epsilon;
  size_t sums;  // scratch: for each channel of each sample the sums of dY and of dY x
  int threads;
  bool wanted[3];

  int64_t group_channels() const { return view.channels / groups; }
  int64_t run_size() const { return group_channels() * view.positions; }
};

// One run: `sums` gets two numbers for each of its channels.
template <typename T>
void GradientOfRun(const GroupGrad& k, int64_t run, const T* dy, const T* x, const T* scale,
                   double* sums, T* dx) {
  using Acc = Accumulator<T>;
  const int64_t size = k.run_size(), positions = k.view.positions, channels = k.group_channels();
  if (size == 0)
    return static_cast<void>(std::fill_n(sums, 2 * channels, 0.0));  // nothing has no deviation
  const T* s = scale + run % k.groups * channels;
  const Acc mean = RowSum(x, size) / static_cast<Acc>(size);
  const double variance = RowSquares(x, size, mean) / static_cast<double>(size);
  const Acc inv_std = static_cast<Acc>(1 / std::sqrt(variance + k.epsilon));
  double sum_g = 0, sum_gx = 0;
  for (int64_t c = 0; c < channels; ++c) {
    const T *d = dy + c * positions, *row = x + c * positions;
    const auto [sum_d, sum_dx] = LaneSums<Acc>(positions, [=](int64_t i, Acc* of_d, Acc* of_dx) {
      *of_d = Acc(d[i]);
      *of_dx = *of_d * (Acc(row[i]) - mean);
    });
    sums[2 * c] = sum_d;
    sums[2 * c + 1] = inv_std * sum_dx;
    sum_g += Acc(s[c]) * sums[2 * c];
    sum_gx += Acc(s[c]) * sums[2 * c + 1];
  }
  if (dx == nullptr) return;
  const Acc mean_g = static_cast<Acc>(sum_g / static_cast<double>(size));
  const Acc mean_gx = static_cast<Acc>(sum_gx / static_cast<double>(size));
  for (int64_t c = 0; c < channels; ++c) {
    const Acc factor = s[c];
#pragma omp simd
    for (int64_t i = c * positions; i < (c + 1) * positions; ++i) {
      dx[i] = T(inv_std * (Acc(dy[i]) * factor - mean_g - (Acc(x[i]) - mean) * inv_std * mean_gx));
    }
  }
}

template <typename T>
void RunGroupGrad(const GroupGrad& k, KernelContext& context) {
  const ChannelView& v = k.view;
  const T *dy = context.Input<T>(0), *x = context.Input<T>(1), *scale = context.Input<T>(2);
  T* dx = k.wanted[0] ? context.Output<T>(0) : nullptr;
  double* sums = context.Scratch<double>(k.sums);
  const int64_t size = k.run_size();
  ParallelFor(k.threads, v.batch * k.groups, 1 + kParallelGrain / (6 * size + 1),
              [=, &k](int64_t first, int64_t last) {
                OnBestIsa([=, &k] {
                  for (int64_t run = first; run < last; ++run) {
                    GradientOfRun(k, run, dy + run * size, x + run * size, scale,
                                  sums + 2 * run * k.group_channels(),
                                  dx == nullptr ? nullptr : dx + run * size);
                  }
                });
              });
  auto add_up = [&](int output, int64_t which) {
    if (!k.wanted[output]) return;
    T* out = context.Output<T>(output);
    for (int64_t c = 0; c < v.channels; ++c) {
      double sum = 0;
      for (int64_t b = 0; b < v.batch; ++b) sum += sums[2 * (b * v.channels + c) + which];
      out[c] = T(static_cast<Accumulator<T>>(sum));
    }
  };
  add_up(1, 1);
  add_up(2, 0);
}

Status CreateGrad(KernelInfo& info, int64_t groups) {
  const DType dtype = info.InputDType(0);
  const Shape& x = info.InputShape(1);
  if (x.rank() < 2 || info.InputShape(0) != x)
    return info.Invalid("dY and X of one shape of rank >= 2 expected");
  GroupGrad k{MakeChannelView(x), groups, info.Attr<float>("epsilon", 1e-5f), 0,
              info.threads(),     {}};
  if (groups <= 0 || k.view.channels % groups != 0)
    return info.Invalid("num_groups must divide the channels");
  RETURN_IF_ERROR(CheckChannelVector(info, 2, k.view.channels));
  for (int i : {1, 2}) {
    if (info.InputDType(i) != dtype) return info.Invalid("inputs of one dtype expected");
  }
  k.sums = info.BookScratch(2 * k.view.batch * k.view.channels * sizeof(double));
  for (int i = 0; i < 3; ++i) k.wanted[i] = info.HasOutput(i);
  info.SetOutput(0, dtype, x);
  info.SetOutput(1, dtype, Shape{k.view.channels});
  info.SetOutput(2, dtype, Shape{k.view.channels});
  DispatchFloat(dtype, [&](auto tag) {
    using T = typename decltype(tag)::type;
    info.SetCompute([k](KernelContext& context) { RunGroupGrad<T>(k, context); });
  });
  return {};
}

Status CreateInstanceNormGrad(KernelInfo& info) {
  const Shape& x = info.InputShape(1);
  return CreateGrad(info, x.rank() < 2 ? 0 : std::max<int64_t>(1, x[1]));
}

Status CreateGroupNormGrad(KernelInfo& info) {
  return CreateGrad(info, info.Attr<int64_t>("num_groups", 0));
}

}  // namespace

void RegisterGroupNormGrad(KernelRegistry& registry) {
  registry.Add({.op_type = "InstanceNormalizationGrad",
                .domain = kCaesuraDomain,
                .types = kFloatTypes,
                .aliases = {MayReuse(0, 0)},
                .create = CreateInstanceNormGrad});
  registry.Add({.op_type = "GroupNormalizationGrad",
                .domain = kCaesuraDomain,
                .types = kFloatTypes,
                .aliases = {MayReuse(0, 0)},
                .create = CreateGroupNormGrad});
}

}  // namespace caesura
