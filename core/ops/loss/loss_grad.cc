// SPDX-License-Identifier: Apache-2.0
// SoftmaxCrossEntropyLossGrad: dScores = g * weight[label] * (softmax - one_hot(label)), and
// NegativeLogLikelihoodLossGrad: dInput = -g * weight[label] * one_hot(label), where g is dLoss,
// divided by the sum of weights for a mean.
#include <algorithm>
#include <type_traits>

#include "core/base/status_macros.h"
#include "core/kernels/kernel_registry.h"
#include "core/kernels/simd/best_isa.h"
#include "core/kernels/simd/float_math.h"
#include "core/kernels/simd/parallel.h"
#include "core/kernels/simd/row_math.h"
#include "core/kernels/kernel.h"
#include "core/ops/loss/loss_spec.h"

namespace caesura {
namespace {

// The factor of the gradient of sample i, for unit weight.
template <typename T>
class SampleGradient {
 public:
  SampleGradient(const LossSpec& spec, const LossTargets<T>& targets, const T* d_loss)
      : d_loss_(d_loss), step_(spec.reduction == LossReduction::kNone ? 1 : 0) {
    if (spec.reduction == LossReduction::kMean)
      divisor_ = static_cast<Accumulator<T>>(targets.TotalWeight());
  }
  Accumulator<T> operator()(int64_t i) const {
    return static_cast<Accumulator<T>>(d_loss_[i * step_]) / divisor_;
  }

 private:
  const T* d_loss_;
  int64_t step_;
  Accumulator<T> divisor_ = 1;
};

// dx may lie where the scores do.
template <typename T>
Status ScoreGradient(const LossSpec& s, int threads, KernelContext& context, T* dx) {
  using Acc = Accumulator<T>;
  const LossTargets<T> targets(s, context);
  RETURN_IF_ERROR(targets.Check());
  const SampleGradient<T> gradient(s, targets, context.Input<T>(0));
  const T* scores = context.Input<T>(1);
  const Acc* lse = context.Input<Acc>(4);
  const int64_t step = s.positions;
  // As many samples at once as lie side by side.
  auto rows = [&](int64_t first, int64_t last) {
    for (int64_t i = first; i < last;) {
      const int64_t count = std::min({kLanes, last - i, step - i % step}), at = s.ScoreAt(i, 0);
      const T* x = scores + at;
      T* to = dx + at;
      Acc g[kLanes] = {}, shift[kLanes] = {};
      for (int64_t k = 0; k < count; ++k) {
        shift[k] = lse[i + k];
        const int64_t label = targets.Label(i + k);
        if (!targets.IsIgnored(label)) g[k] = gradient(i + k) * targets.Weight(label);
      }
      if (step == 1) {
        const Acc row_g = g[0], row_shift = shift[0];
#pragma omp simd
        for (int64_t c = 0; c < s.classes; ++c) to[c] = T(math::Exp(Acc(x[c]) - row_shift) * row_g);
      } else {
        for (int64_t c = 0; c < s.classes; ++c) {
#pragma omp simd
          for (int64_t k = 0; k < count; ++k)
            to[c * step + k] = T(math::Exp(Acc(x[c * step + k]) - shift[k]) * g[k]);
        }
      }
      for (int64_t k = 0; k < count; ++k) {
        const int64_t label = targets.Label(i + k);
        if (targets.IsIgnored(label)) {
          for (int64_t c = 0; c < s.classes; ++c) to[c * step + k] = T(0.0f);
        } else {
          to[label * step + k] = T(Acc(to[label * step + k]) - g[k]);
        }
      }
      i += count;
    }
  };
  ParallelFor(threads, s.samples(), 1 + kParallelGrain / (16 * s.classes + 1),
              [&](int64_t first, int64_t last) { OnBestIsa([&] { rows(first, last); }); });
  return {};
}

Status CreateCrossEntropyGrad(KernelInfo& info) {
  const DType dtype = info.InputDType(1);
  const Shape& scores = info.InputShape(1);
  ASSIGN_OR_RETURN(const LossSpec spec, MakeLossSpec(info, scores, 2, 3));
  ASSIGN_OR_RETURN(const DType written, CheckScoreGradient(info, spec));
  info.SetOutput(0, written, scores);
  const int64_t count = scores.elements();
  const bool narrows = written != dtype;
  // A narrow gradient is computed as a wide one, and then rounded: the bits of a cast after it.
  const size_t wide = info.BookScratch(narrows ? static_cast<size_t>(count) * sizeof(float) : 0);
  const int threads = info.threads();
  DispatchFloat(dtype, [&](auto tag) {
    using T = typename decltype(tag)::type;
    info.SetCompute([=](KernelContext& context) -> Status {
      T* dx = narrows ? context.Scratch<T>(wide) : context.Output<T>(0);
      RETURN_IF_ERROR(ScoreGradient<T>(spec, threads, context, dx));
      if constexpr (std::is_same_v<T, float>) {
        if (written == DType::kFloat16) std::copy_n(dx, count, context.Output<Float16>(0));
        if (written == DType::kBFloat16) std::copy_n(dx, count, context.Output<BFloat16>(0));
      }
      return {};
    });
  });
  return {};
}

template <typename T>
Status LikelihoodGradient(const LossSpec& s, int64_t count, KernelContext& context) {
  const LossTargets<T> targets(s, context);
  RETURN_IF_ERROR(targets.Check());
  const SampleGradient<T> gradient(s, targets, context.Input<T>(0));
  T* dx = context.Output<T>(0);
  std::fill_n(dx, count, T(0.0f));
  for (int64_t i = 0; i < s.samples(); ++i) {
    const int64_t label = targets.Label(i);
    if (!targets.IsIgnored(label))
      dx[s.ScoreAt(i, label)] = T(-gradient(i) * targets.Weight(label));
  }
  return {};
}

Status CreateNegativeLogLikelihoodGrad(KernelInfo& info) {
  Result<Shape> shape = CheckedShape(info.HostInts(3), info.InputDType(0));
  if (!shape.ok()) return info.Invalid(shape.status().message());
  ASSIGN_OR_RETURN(const LossSpec spec, MakeLossSpec(info, *shape, 1, 2));
  RETURN_IF_ERROR(CheckLossGradient(info, spec));
  info.SetOutput(0, info.InputDType(0), *shape);
  const int64_t count = shape->elements();
  DispatchFloat(info.InputDType(0), [&](auto tag) {
    using T = typename decltype(tag)::type;
    info.SetCompute(
        [=](KernelContext& context) { return LikelihoodGradient<T>(spec, count, context); });
  });
  return {};
}

}  // namespace

void RegisterLossGrad(KernelRegistry& registry) {
  registry.Add({.op_type = "SoftmaxCrossEntropyLossGrad",
                .domain = kCaesuraDomain,
                .types = kFloatTypes,
                .aliases = {MayReuse(1, 0)},
                .create = CreateCrossEntropyGrad});
  registry.Add({.op_type = "NegativeLogLikelihoodLossGrad",
                .domain = kCaesuraDomain,
                .types = kFloatTypes,
                .host_inputs = {3},
                .create = CreateNegativeLogLikelihoodGrad});
}

}  // namespace caesura
