// SPDX-License-Identifier: Apache-2.0
// SoftmaxCrossEntropyLossGrad: dScores = g * weight[label] * (softmax - one_hot(label)), and
// NegativeLogLikelihoodLossGrad: dInput = -g * weight[label] * one_hot(label), where g is dLoss,
// divided by the sum of weights for a mean.
#include <algorithm>
#include <cmath>

#include "core/base/status_macros.h"
#include "core/kernels/cpu/gemm/dnnl_ops.h"
#include "core/kernels/cpu/simd/parallel.h"
#include "core/kernels/kernel_context.h"
#include "core/kernels/spec/loss_spec.h"
#include "training/kernels/normalization/kernel_list.h"
#include "training/kernels/training_ops.h"

namespace caesura {
namespace {

Status CheckLossGradient(const KernelInfo& info, const LossSpec& spec, int label_input) {
  const Shape expected =
      spec.reduction == LossReduction::kNone ? info.InputShape(label_input) : Shape{};
  if (info.InputShape(0) == expected) return {};
  return info.Invalid("dLoss of shape " + expected.ToString() + " expected, got " +
                      info.InputShape(0).ToString());
}

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

// dx holds the softmax where `has_softmax`; otherwise it is worked out from log_prob.
template <typename T>
Status ScoreGradient(const LossSpec& s, int threads, KernelContext& context, bool has_softmax,
                     T* dx) {
  using Acc = Accumulator<T>;
  const LossTargets<T> targets(s, context);
  RETURN_IF_ERROR(targets.Check());
  const SampleGradient<T> gradient(s, targets, context.Input<T>(0));
  const T* log_prob = context.Input<T>(1);
  ParallelFor(threads, s.samples(), 1 + kParallelGrain / (16 * s.classes + 1),
              [&](int64_t first, int64_t last) {
                for (int64_t i = first; i < last; ++i) {
                  const int64_t at = s.ScoreAt(i, 0), step = s.positions, label = targets.Label(i);
                  if (targets.IsIgnored(label)) {
                    for (int64_t c = 0; c < s.classes; ++c) dx[at + c * step] = T(0.0f);
                    continue;
                  }
                  const Acc g = gradient(i) * targets.Weight(label);
                  if (has_softmax) {
                    for (int64_t c = 0; c < s.classes; ++c)
                      dx[at + c * step] = T(Acc(dx[at + c * step]) * g);
                  } else {
                    for (int64_t c = 0; c < s.classes; ++c)
                      dx[at + c * step] = T(std::exp(Acc(log_prob[at + c * step])) * g);
                  }
                  dx[at + label * step] = T(Acc(dx[at + label * step]) - g);
                }
              });
  return {};
}

Status CreateCrossEntropyGrad(KernelInfo& info) {
  const DType dtype = info.InputDType(1);
  const Shape& scores = info.InputShape(1);
  ASSIGN_OR_RETURN(const LossSpec spec, MakeLossSpec(info, scores, 2, 3));
  RETURN_IF_ERROR(CheckLossGradient(info, spec, 2));
  if (info.InputDType(0) != dtype) return info.Invalid("dLoss and log_prob of one dtype expected");
  const auto out_dtype =
      static_cast<DType>(info.Attr<int64_t>("dtype", static_cast<int64_t>(dtype)));
  const bool narrows =
      dtype == DType::kFloat32 && (out_dtype == DType::kFloat16 || out_dtype == DType::kBFloat16);
  if (out_dtype != dtype && !narrows)
    return info.Invalid("dtype: expected float16 or bfloat16 for float32 log-probabilities");
  info.SetOutput(0, out_dtype, scores);
  const int64_t count = scores.elements();
  // A narrow gradient is computed as a wide one, and then rounded: the bits of a cast after it.
  const size_t wide = info.BookScratch(narrows ? static_cast<size_t>(count) * sizeof(float) : 0);
  DnnlCall exp;
  if (dtype == DType::kFloat32 && count >= 64) {
    Result<DnnlCall> made =
        MakeDnnlExp(info, DnnlThreads(info.threads(), 4 * count), {dtype, {count}, {}});
    if (!made.ok() && made.status().code() != StatusCode::kDeclined) return made.status();
    if (made.ok()) exp = *std::move(made);
  }
  const int threads = info.threads();
  DispatchFloat(dtype, [&](auto tag) {
    using T = typename decltype(tag)::type;
    info.SetCompute([=](KernelContext& context) -> Status {
      T* dx = narrows ? context.Scratch<T>(wide) : context.Output<T>(0);
      if (exp.defined()) RETURN_IF_ERROR(exp.Run(context, {context.Input<T>(1), dx}));
      RETURN_IF_ERROR(ScoreGradient<T>(spec, threads, context, exp.defined(), dx));
      if constexpr (std::is_same_v<T, float>) {
        if (out_dtype == DType::kFloat16) std::copy_n(dx, count, context.Output<Float16>(0));
        if (out_dtype == DType::kBFloat16) std::copy_n(dx, count, context.Output<BFloat16>(0));
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
  RETURN_IF_ERROR(CheckLossGradient(info, spec, 1));
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
                .domain = kTrainingDomain,
                .types = kFloatTypes,
                .aliases = {MayReuse(1, 0)},
                .create = CreateCrossEntropyGrad});
  registry.Add({.op_type = "NegativeLogLikelihoodLossGrad",
                .domain = kTrainingDomain,
                .types = kFloatTypes,
                .host_inputs = {3},
                .create = CreateNegativeLogLikelihoodGrad});
}

}  // namespace caesura
