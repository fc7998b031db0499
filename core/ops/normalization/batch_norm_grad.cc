// SPDX-License-Identifier: Apache-2.0
// BatchNormalizationTraining and BatchNormalizationGrad. With m elements a channel and x = (X -
// mean) * inv_std:
//   dB = sum of dY, dScale = sum of dY x, dX = scale * inv_std * (dY - dB / m - x * dScale / m)
#include <algorithm>
#include <cmath>

#include "core/base/status_macros.h"
#include "core/kernels/walks/channel_norm.h"
#include "core/kernels/kernel_registry.h"
#include "core/kernels/simd/best_isa.h"
#include "core/kernels/kernel.h"

namespace caesura {
namespace {

// running = momentum * running + (1 - momentum) * current, from input `input` to output `output`.
void UpdateRunning(const BatchNormSpec& t, KernelContext& context, int input, int output,
                   const double* current, double correction, double* scratch) {
  if (!t.wanted[output]) return;
  const int64_t channels = t.view.channels;
  LoadFloats(t.stat_type, context.Input<void>(input), channels, scratch);
  for (int64_t c = 0; c < channels; ++c) {
    scratch[c] = scratch[c] * t.momentum + current[c] * correction * (1 - t.momentum);
  }
  StoreFloats(t.stat_type, scratch, channels, context.Output<void>(output));
}

template <typename T>
void SetTraining(KernelInfo& info, const BatchNormSpec& t) {
  using Acc = Accumulator<T>;
  const int64_t channels = t.view.channels;
  const size_t numbers = info.BookScratch(4 * channels * sizeof(double));
  const size_t folded = info.BookScratch(3 * channels * sizeof(Acc));
  const int threads = info.threads();
  info.SetCompute([=](KernelContext& context) {
    double* mean = context.Scratch<double>(numbers);
    double *variance = mean + channels, *scale = variance + channels, *bias = scale + channels;
    Acc *m = context.Scratch<Acc>(folded), *a = m + channels, *b = a + channels;
    const T* x = context.Input<T>(0);
    ChannelMoments(threads, t.view, x, mean, variance);
    UpdateRunning(t, context, 3, 1, mean, 1, scale);
    UpdateRunning(t, context, 4, 2, variance, t.correction, scale);
    LoadFloats(t.parameter_type, context.Input<void>(1), channels, scale);
    LoadFloats(t.parameter_type, context.Input<void>(2), channels, bias);
    for (int64_t c = 0; c < channels; ++c) {
      variance[c] =
          1 / std::sqrt(variance[c] + t.epsilon);  // from here on the inverse standard deviation
      m[c] = static_cast<Acc>(mean[c]);
      a[c] = static_cast<Acc>(scale[c] * variance[c]);
      b[c] = static_cast<Acc>(bias[c]);
    }
    if (t.wanted[3]) StoreFloats(t.stat_type, mean, channels, context.Output<void>(3));
    if (t.wanted[4]) StoreFloats(t.stat_type, variance, channels, context.Output<void>(4));
    ScaleChannels(threads, t.view, x, m, a, b, context.Output<T>(0));
  });
}

Status CreateTraining(KernelInfo& info) {
  ASSIGN_OR_RETURN(const BatchNormSpec t, MakeBatchNormTrainingSpec(info));
  DispatchFloat(info.InputDType(0),
                [&](auto tag) { SetTraining<typename decltype(tag)::type>(info, t); });
  return {};
}

// dx[i] = a * dy[i] + b * (x[i] - mean) + c for each element of a channel.
template <typename Acc>
struct ChannelMap {
  Acc a, b, mean, c;
};

struct BatchGrad : BatchNormSpec {
  size_t numbers, maps;
  int threads;
};

// sum_dy[c] = sum of dY; sum_dyx[c] = sum of dY * (X - mean).
template <typename T>
void GradientSums(const BatchGrad& k, const T* dy, const T* x, const double* mean, double* sum_dy,
                  double* sum_dyx) {
  using Acc = Accumulator<T>;
  const ChannelView& v = k.view;
  ParallelFor(k.threads, v.channels, 1 + kParallelGrain / (2 * v.per_channel() + 1),
              [=](int64_t first, int64_t last) {
                if (v.positions == 1) {
                  std::fill(sum_dy + first, sum_dy + last, 0.0);
                  std::fill(sum_dyx + first, sum_dyx + last, 0.0);
                  for (int64_t b = 0; b < v.batch; ++b) {
                    for (int64_t c = first; c < last; ++c) {
                      const double d = Acc(dy[b * v.channels + c]);
                      sum_dy[c] += d;
                      sum_dyx[c] += d * (Acc(x[b * v.channels + c]) - mean[c]);
                    }
                  }
                  return;
                }
                OnBestIsa([=] {
                  for (int64_t c = first; c < last; ++c) {
                    const Acc shift = static_cast<Acc>(mean[c]);
                    sum_dy[c] =
                        ChannelSum(v, c, [=](int64_t at, int64_t n) { return RowSum(dy + at, n); });
                    sum_dyx[c] = ChannelSum(v, c, [=](int64_t at, int64_t n) {
                      return LaneSum<Acc>(
                          n, [=](int64_t i) { return Acc(dy[at + i]) * (Acc(x[at + i]) - shift); });
                    });
                  }
                });
              });
}

template <typename T>
void MapRows(const BatchGrad& k, const T* dy, const T* x, const ChannelMap<Accumulator<T>>* maps,
             T* dx) {
  using Acc = Accumulator<T>;
  const ChannelView& v = k.view;
  if (v.elements() == 0) return;
  if (v.positions == 1) {
    ParallelFor(k.threads, v.batch, 1 + kParallelGrain / (v.channels + 1),
                [=](int64_t first, int64_t last) {
                  for (int64_t b = first; b < last; ++b) {
                    for (int64_t c = 0; c < v.channels; ++c) {
                      const int64_t i = b * v.channels + c;
                      const ChannelMap<Acc>& m = maps[c];
                      dx[i] = T(m.a * Acc(dy[i]) + m.b * (Acc(x[i]) - m.mean) + m.c);
                    }
                  }
                });
    return;
  }
  ParallelFor(k.threads, v.batch * v.channels, 1 + kParallelGrain / (v.positions + 1),
              [=](int64_t first, int64_t last) {
                OnBestIsa([=] {
                  for (int64_t row = first; row < last; ++row) {
                    const ChannelMap<Acc> m = maps[row % v.channels];
#pragma omp simd
                    for (int64_t i = row * v.positions; i < (row + 1) * v.positions; ++i) {
                      dx[i] = T(m.a * Acc(dy[i]) + m.b * (Acc(x[i]) - m.mean) + m.c);
                    }
                  }
                });
              });
}

template <typename T>
void RunBatchGrad(const BatchGrad& k, KernelContext& context) {
  using Acc = Accumulator<T>;
  const int64_t channels = k.view.channels;
  double* scale = context.Scratch<double>(k.numbers);
  double *mean = scale + channels, *inv_std = mean + channels, *sum_dy = inv_std + channels,
         *sum_dyx = sum_dy + channels;
  LoadFloats(k.parameter_type, context.Input<void>(2), channels, scale);
  LoadFloats(k.stat_type, context.Input<void>(3), channels, mean);
  LoadFloats(k.stat_type, context.Input<void>(4), channels, inv_std);
  const T *dy = context.Input<T>(0), *x = context.Input<T>(1);
  GradientSums(k, dy, x, mean, sum_dy, sum_dyx);
  auto* maps = context.Scratch<ChannelMap<Acc>>(k.maps);
  const double m = static_cast<double>(k.view.per_channel());
  for (int64_t c = 0; c < channels; ++c) {
    sum_dyx[c] = m > 0 ? sum_dyx[c] * inv_std[c] : 0;  // now dScale; nothing has no deviation
    const double a = scale[c] * inv_std[c];
    maps[c] = {static_cast<Acc>(a), static_cast<Acc>(-a * inv_std[c] * sum_dyx[c] / m),
               static_cast<Acc>(mean[c]), static_cast<Acc>(-a * sum_dy[c] / m)};
  }
  if (k.wanted[0]) MapRows(k, dy, x, maps, context.Output<T>(0));
  if (k.wanted[1]) StoreFloats(k.parameter_type, sum_dyx, channels, context.Output<void>(1));
  if (k.wanted[2]) StoreFloats(k.parameter_type, sum_dy, channels, context.Output<void>(2));
}

Status CreateBatchNormGrad(KernelInfo& info) {
  ASSIGN_OR_RETURN(const BatchNormSpec spec, MakeBatchNormGradSpec(info));
  BatchGrad k{spec, 0, 0, info.threads()};
  k.numbers = info.BookScratch(5 * k.view.channels * sizeof(double));
  k.maps = info.BookScratch(k.view.channels * sizeof(ChannelMap<double>));
  DispatchFloat(info.InputDType(0), [&](auto tag) {
    using T = typename decltype(tag)::type;
    info.SetCompute([k](KernelContext& context) { RunBatchGrad<T>(k, context); });
  });
  return {};
}

}  // namespace

void RegisterBatchNormGrad(KernelRegistry& registry) {
  registry.Add({.op_type = "BatchNormalizationTraining",
                .domain = kCaesuraDomain,
                .types = kFloatTypes,
                .aliases = {MayReuse(0, 0)},
                .create = CreateTraining});
  registry.Add({.op_type = "BatchNormalizationGrad",
                .domain = kCaesuraDomain,
                .types = kFloatTypes,
                .aliases = {MayReuse(0, 0), MayReuse(1, 0)},
                .create = CreateBatchNormGrad});
}

}  // namespace caesura
