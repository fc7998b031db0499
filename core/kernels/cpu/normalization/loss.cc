// SPDX-License-Identifier: Apache-2.0
// SoftmaxCrossEntropyLoss and NegativeLogLikelihoodLoss: loss = -weight[label] * log_prob[label],
// reduced.
#include <cmath>
#include <type_traits>

#include "core/base/status_macros.h"
#include "core/kernels/cpu/gemm/dnnl_ops.h"
#include "core/kernels/cpu/normalization/kernel_list.h"
#include "core/kernels/cpu/simd/best_isa.h"
#include "core/kernels/cpu/simd/float_math.h"
#include "core/kernels/cpu/simd/parallel.h"
#include "core/kernels/cpu/simd/row_math.h"
#include "core/kernels/kernel_context.h"
#include "core/kernels/spec/loss_spec.h"

namespace caesura {
namespace {

template <typename T>
Status ReduceLoss(const LossSpec& spec, KernelContext& context, const T* log_prob) {
  const LossTargets<T> targets(spec, context);
  RETURN_IF_ERROR(targets.Check());
  T* out = context.Output<T>(0);
  double sum = 0;
  for (int64_t i = 0; i < spec.samples(); ++i) {
    const int64_t label = targets.Label(i);
    const Accumulator<T> loss =
        targets.IsIgnored(label) ? 0
                                 : -static_cast<Accumulator<T>>(log_prob[spec.ScoreAt(i, label)]) *
                                       targets.Weight(label);
    if (spec.reduction == LossReduction::kNone) out[i] = T(loss);
    sum += loss;
  }
  if (spec.reduction == LossReduction::kMean) sum /= targets.TotalWeight();
  if (spec.reduction != LossReduction::kNone) out[0] = T(static_cast<Accumulator<T>>(sum));
  return {};
}

// Elements up to which a oneDNN call costs more than the loop.
constexpr int64_t kSmallLogSoftmax = 4096;

// y = log softmax of x along the classes.
template <typename T>
void LogSoftmax(int threads, const LossSpec& s, const T* x, T* y) {
  using Acc = Accumulator<T>;
  ParallelFor(threads, s.samples(), 1 + kParallelGrain / (16 * s.classes + 1),
              [=](int64_t first, int64_t last) {
                auto rows = [=](auto step) {
                  for (int64_t i = first; i < last; ++i) {
                    const T* from = x + s.ScoreAt(i, 0);
                    T* to = y + s.ScoreAt(i, 0);
                    Acc max = from[0];
                    for (int64_t c = 1; c < s.classes; ++c)
                      max = std::max<Acc>(max, from[c * step]);
                    const Acc sum = LaneSum<Acc>(
                        s.classes, [=](int64_t c) { return math::Exp(Acc(from[c * step]) - max); });
                    const Acc shift = max + std::log(sum);
                    for (int64_t c = 0; c < s.classes; ++c)
                      to[c * step] = T(Acc(from[c * step]) - shift);
                  }
                };
                if (s.positions == 1)
                  OnBestIsa([&] { rows(std::integral_constant<int64_t, 1>()); });
                else rows(s.positions);
              });
}

Result<DnnlCall> MakeLogSoftmax(KernelInfo& info, DType dtype, const LossSpec& s) {
  const int64_t count = s.samples() * s.classes;
  if (count <= kSmallLogSoftmax || (dtype != DType::kFloat32 && dtype != DType::kBFloat16))
    return info.Refuse("small or wide");
  DnnlTensor tensor{dtype, {s.batch, s.classes}, {}};
  if (s.positions > 1) tensor.dims.push_back(s.positions);
  return MakeDnnlSoftmax(info, DnnlThreads(info.threads(), 8 * count), tensor, 1, true);
}

void SetLossOutput(KernelInfo& info, const LossSpec& spec) {
  info.SetOutput(0, info.InputDType(0),
                 spec.reduction == LossReduction::kNone ? info.InputShape(1) : Shape{});
}

Status CreateCrossEntropy(KernelInfo& info) {
  const DType dtype = info.InputDType(0);
  ASSIGN_OR_RETURN(const LossSpec spec, MakeLossSpec(info, info.InputShape(0), 1, 2));
  SetLossOutput(info, spec);
  info.SetOutput(1, dtype, info.InputShape(0));
  const bool has_log_prob = info.HasOutput(1);
  if (spec.classes == 0) return info.Invalid("at least one class expected");
  Result<DnnlCall> dnnl = MakeLogSoftmax(info, dtype, spec);
  if (!dnnl.ok() && dnnl.status().code() != StatusCode::kDeclined) return dnnl.status();
  const DnnlCall call = dnnl.ok() ? *dnnl : DnnlCall();
  const size_t scratch =
      has_log_prob ? 0 : info.BookScratch(info.InputShape(0).elements() * DTypeSize(dtype));
  const int threads = info.threads();
  DispatchFloat(dtype, [&](auto tag) {
    using T = typename decltype(tag)::type;
    info.SetCompute([=](KernelContext& context) {
      const T* x = context.Input<T>(0);
      T* log_prob = has_log_prob ? context.Output<T>(1) : context.Scratch<T>(scratch);
      if (call.defined()) {
        RETURN_IF_ERROR(call.Run(context, {x, log_prob}));
      } else {
        LogSoftmax(threads, spec, x, log_prob);
      }
      return ReduceLoss<T>(spec, context, log_prob);
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
  // Log-probabilities may lie where the scores did: each row is read before it is written.
  registry.Add({.op_type = "SoftmaxCrossEntropyLoss",
                .types = kFloatTypes,
                .aliases = {MayReuse(0, 1)},
                .create = CreateCrossEntropy});
  registry.Add({.op_type = "NegativeLogLikelihoodLoss",
                .types = kFloatTypes,
                .create = CreateNegativeLogLikelihood});
}

}  // namespace caesura
