// SPDX-License-Identifier: Apache-2.0
// SoftmaxCrossEntropyLoss and NegativeLogLikelihoodLoss: loss = -weight[label] * log_prob[label],
// reduced. SoftmaxCrossEntropyLossTraining (ai.caesura) also writes lse, the logarithm of each
// sample's sum of e^score: log_prob = score - lse.
#include <cmath>
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

// log_prob is x, minus each sample's lse where that is given.
template <typename T>
Status ReduceLoss(const LossSpec& spec, KernelContext& context, const T* x,
                  const Accumulator<T>* lse = nullptr) {
  const LossTargets<T> targets(spec, context);
  RETURN_IF_ERROR(targets.Check());
  T* out = context.Output<T>(0);
  double sum = 0;
  for (int64_t i = 0; i < spec.samples(); ++i) {
    const int64_t label = targets.Label(i);
    Accumulator<T> loss = 0;
    if (!targets.IsIgnored(label)) {
      const auto score = static_cast<Accumulator<T>>(x[spec.ScoreAt(i, label)]);
      loss = -(lse == nullptr ? score : score - lse[i]) * targets.Weight(label);
    }
    if (spec.reduction == LossReduction::kNone) out[i] = T(loss);
    sum += loss;
  }
  if (spec.reduction == LossReduction::kMean) sum /= targets.TotalWeight();
  if (spec.reduction != LossReduction::kNone) out[0] = T(static_cast<Accumulator<T>>(sum));
  return {};
}

// rows(first, last, step) over ranges of all samples, whose scores lie `step` apart.
template <typename Rows>
void ForSamples(int threads, const LossSpec& s, const Rows& rows) {
  ParallelFor(threads, s.samples(), 1 + kParallelGrain / (16 * s.classes + 1),
              [&](int64_t first, int64_t last) {
                if (s.positions == 1)
                  OnBestIsa([&] { rows(first, last, std::integral_constant<int64_t, 1>()); });
                else rows(first, last, s.positions);
              });
}

// lse = the logarithm of each sample's sum of e^x.
template <typename T>
void LogSumExp(int threads, const LossSpec& s, const T* x, Accumulator<T>* lse) {
  using Acc = Accumulator<T>;
  ForSamples(threads, s, [=, &s](int64_t first, int64_t last, auto step) {
    for (int64_t i = first; i < last; ++i) {
      const T* from = x + s.ScoreAt(i, 0);
      const Acc max = LaneMax<Acc>(s.classes, [=](int64_t c) { return Acc(from[c * step]); });
      const Acc sum =
          LaneSum<Acc>(s.classes, [=](int64_t c) { return math::Exp(Acc(from[c * step]) - max); });
      lse[i] = max + std::log(sum);
    }
  });
}

// y = x - lse, which may lie where x does.
template <typename T>
void LogProbabilities(int threads, const LossSpec& s, const T* x, const Accumulator<T>* lse, T* y) {
  ForSamples(threads, s, [=, &s](int64_t first, int64_t last, auto step) {
    for (int64_t i = first; i < last; ++i) {
      const T* from = x + s.ScoreAt(i, 0);
      T* to = y + s.ScoreAt(i, 0);
#pragma omp simd
      for (int64_t c = 0; c < s.classes; ++c)
        to[c * step] = T(Accumulator<T>(from[c * step]) - lse[i]);
    }
  });
}

void SetLossOutput(KernelInfo& info, const LossSpec& spec) {
  info.SetOutput(0, info.InputDType(0),
                 spec.reduction == LossReduction::kNone ? info.InputShape(1) : Shape{});
}

Status CreateCrossEntropy(KernelInfo& info) {
  const DType dtype = info.InputDType(0), sums = LogSumDType(dtype);
  ASSIGN_OR_RETURN(const LossSpec spec, MakeLossSpec(info, info.InputShape(0), 1, 2));
  SetLossOutput(info, spec);
  info.SetOutput(1, dtype, info.InputShape(0));
  info.SetOutput(2, sums, info.InputShape(1));
  const bool has_log_prob = info.HasOutput(1), has_lse = info.HasOutput(2);
  if (spec.classes == 0) return info.Invalid("at least one class expected");
  const size_t scratch = has_lse ? 0 : info.BookScratch(spec.samples() * DTypeSize(sums));
  const int threads = info.threads();
  DispatchFloat(dtype, [&](auto tag) {
    using T = typename decltype(tag)::type;
    using Acc = Accumulator<T>;
    info.SetCompute([=](KernelContext& context) -> Status {
      const T* x = context.Input<T>(0);
      Acc* lse = has_lse ? context.Output<Acc>(2) : context.Scratch<Acc>(scratch);
      LogSumExp(threads, spec, x, lse);
      RETURN_IF_ERROR(ReduceLoss<T>(spec, context, x, lse));
      if (has_log_prob) LogProbabilities(threads, spec, x, lse, context.Output<T>(1));
      return {};
    });
  });
  return {};
}

Status CreateNegativeLogLikelihood(KernelInfo& info) {
  ASSIGN_OR_RETURN(const LossSpec spec, MakeLossSpec(info, info.InputShape(0), 1, 2));
  SetLossOutput(info, spec);
  DispatchFloat(info.InputDType(0), [&](auto tag) {
    using T = typename decltype(tag)::type;
    info.SetCompute(
        [=](KernelContext& context) { return ReduceLoss<T>(spec, context, context.Input<T>(0)); });
  });
  return {};
}

}  // namespace

void RegisterLoss(KernelRegistry& registry) {
  // Log-probabilities may lie where the scores did: all else is computed before.
  for (const char* domain : {"", kCaesuraDomain}) {
    registry.Add(
        {.op_type = *domain == 0 ? "SoftmaxCrossEntropyLoss" : "SoftmaxCrossEntropyLossTraining",
         .domain = domain,
         .types = kFloatTypes,
         .aliases = {MayReuse(0, 1)},
         .create = CreateCrossEntropy});
  }
  registry.Add({.op_type = "NegativeLogLikelihoodLoss",
                .types = kFloatTypes,
                .create = CreateNegativeLogLikelihood});
}

}  // namespace caesura
