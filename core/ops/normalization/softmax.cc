// SPDX-License-Identifier: Apache-2.0
// Softmax, LogSoftmax and Hardmax along one axis. oneDNN does what is strided or bfloat16, unless
// it is small.
#include <cmath>
#include <type_traits>

#include "core/base/status_macros.h"
#include "core/kernels/gemm/dnnl_ops.h"
#include "core/kernels/kernel_registry.h"
#include "core/kernels/simd/best_isa.h"
#include "core/kernels/simd/float_math.h"
#include "core/kernels/simd/parallel.h"
#include "core/kernels/simd/row_math.h"
#include "core/kernels/kernel.h"
#include "core/kernels/factory_checks.h"

namespace caesura {
namespace {

// Elements below which a oneDNN call costs more than the loop.
constexpr int64_t kSmallSoftmax = 256;

// The tensor as [outer, count, inner], the axis in the middle.
struct AxisView {
  int64_t outer, count, inner;
};

enum class Kind { kSoftmax, kLogSoftmax, kHardmax };

template <typename T>
void HardmaxLine(const T* x, T* y, int64_t n, int64_t step) {
  int64_t best = 0;
  Accumulator<T> max = x[0];
  for (int64_t i = 1; i < n; ++i) {
    const Accumulator<T> v = x[i * step];
    if (v > max || (v != v && max == max)) {
      max = v;
      best = i;
    }
  }
  for (int64_t i = 0; i < n; ++i) y[i * step] = T(i == best ? 1.0f : 0.0f);
}

// One line along the axis; neighbours are `step` apart: a constant 1 where the compiler shall make
// vectors.
template <Kind kind, typename T, typename Step>
inline void NormalizeLine(const T* x, T* y, int64_t n, Step step) {
  using Acc = Accumulator<T>;
  auto at = [=](int64_t i) { return static_cast<Acc>(x[i * step]); };
  const Acc max = LaneMax<Acc>(n, at);  // a NaN anywhere makes the sum NaN
  const auto power = [=](int64_t i) { return math::Exp(at(i) - max); };
  if constexpr (kind == Kind::kLogSoftmax) {
    const Acc log_sum = std::log(LaneSum<Acc>(n, power));
#pragma GCC ivdep  // y is x, or shares nothing with it
    for (int64_t i = 0; i < n; ++i) y[i * step] = T(at(i) - max - log_sum);
  } else if constexpr (std::is_same_v<T, Acc>) {
#pragma GCC ivdep
    for (int64_t i = 0; i < n; ++i) y[i * step] = power(i);
    const Acc scale = 1 / LaneSum<Acc>(n, [=](int64_t i) { return y[i * step]; });
    for (int64_t i = 0; i < n; ++i) y[i * step] *= scale;
  } else {
    const Acc sum = LaneSum<Acc>(n, power);
    const Acc scale = 1 / sum;
#pragma GCC ivdep
    for (int64_t i = 0; i < n; ++i) y[i * step] = T(power(i) * scale);
  }
}

template <Kind kind, typename T>
void SetPlain(KernelInfo& info, AxisView view) {
  const int threads = info.threads();
  info.SetCompute([=](KernelContext& context) {
    const T* x = context.Input<T>(0);
    T* y = context.Output<T>(0);
    const int64_t cost = 16 * view.count;
    ParallelFor(
        threads, view.outer * view.inner, 1 + kParallelGrain / cost,
        [=](int64_t first, int64_t last) {
          auto lines = [=](auto normalize) {
            for (int64_t line = first; line < last; ++line) {
              const int64_t offset =
                  line / view.inner * view.count * view.inner + line % view.inner;
              normalize(x + offset, y + offset);
            }
          };
          if constexpr (kind == Kind::kHardmax) {
            lines([=](const T* from, T* to) { HardmaxLine(from, to, view.count, view.inner); });
          } else if (view.inner == 1) {
            constexpr std::integral_constant<int64_t, 1> kStep;
            OnBestIsa([&] {
              lines(
                  [=](const T* from, T* to) { NormalizeLine<kind>(from, to, view.count, kStep); });
            });
          } else {
            lines([=](const T* from, T* to) {
              NormalizeLine<kind>(from, to, view.count, view.inner);
            });
          }
        });
  });
}

template <Kind kind>
Status Create(KernelInfo& info) {
  const Shape& shape = info.InputShape(0);
  const DType dtype = info.InputDType(0);
  info.SetOutput(0, dtype, shape);
  if (shape.rank() == 0) return info.Invalid("a tensor of rank 1 or more expected, got a scalar");
  ASSIGN_OR_RETURN(const int axis, CheckAxis(info, info.Attr<int64_t>("axis", -1), shape.rank()));
  const AxisView view{shape.Elements(0, axis), shape[axis], shape.Elements(axis + 1, shape.rank())};
  if (shape.elements() == 0) {
    info.SetCompute([](KernelContext&) {});
    return {};
  }
  const bool dnnl_is_faster =
      (dtype == DType::kFloat32 && view.inner > 1) || dtype == DType::kBFloat16;
  if (kind != Kind::kHardmax && dnnl_is_faster && shape.elements() >= kSmallSoftmax) {
    DnnlTensor tensor{dtype, {view.outer, view.count}, {}};
    if (view.inner > 1) tensor.dims.push_back(view.inner);
    const int threads = DnnlThreads(info.threads(), 8 * shape.elements());
    Result<DnnlCall> call = MakeDnnlSoftmax(info, threads, tensor, 1, kind == Kind::kLogSoftmax);
    if (call.ok()) {
      info.SetCompute([call = *std::move(call)](KernelContext& context) {
        return call.Run(context, {context.Input<void>(0), context.Output<void>(0)});
      });
      return {};
    }
    if (call.status().code() != StatusCode::kDeclined) return call.status();
  }
  DispatchFloat(dtype, [&](auto tag) { SetPlain<kind, typename decltype(tag)::type>(info, view); });
  return {};
}

}  // namespace

void RegisterSoftmax(KernelRegistry& registry) {
  registry.Add({.op_type = "Softmax",
                .types = kFloatTypes,
                .aliases = {MayReuse(0, 0)},
                .create = Create<Kind::kSoftmax>});
  registry.Add({.op_type = "LogSoftmax",
                .types = kFloatTypes,
                .aliases = {MayReuse(0, 0)},
                .create = Create<Kind::kLogSoftmax>});
  registry.Add({.op_type = "Hardmax",
                .types = kFloatTypes,
                .aliases = {MayReuse(0, 0)},
                .create = Create<Kind::kHardmax>});
}

}  // namespace caesura
