// SPDX-License-Identifier: Apache-2.0
// Softmax, LogSoftmax and Hardmax along one axis. oneDNN does bfloat16, unless it is small.
#include <algorithm>
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

// One line along the axis, whose elements lie together.
template <Kind kind, typename T>
inline void NormalizeLine(const T* x, T* y, int64_t n) {
  using Acc = Accumulator<T>;
  auto at = [=](int64_t i) { return static_cast<Acc>(x[i]); };
  const Acc max = LaneMax<Acc>(n, at);  // a NaN anywhere makes the sum NaN
  const auto power = [=](int64_t i) { return math::Exp(at(i) - max); };
  if constexpr (kind == Kind::kLogSoftmax) {
    const Acc log_sum = std::log(LaneSum<Acc>(n, power));
#pragma GCC ivdep  // y is x, or shares nothing with it
    for (int64_t i = 0; i < n; ++i) y[i] = T(at(i) - max - log_sum);
  } else if constexpr (std::is_same_v<T, Acc>) {
#pragma GCC ivdep
    for (int64_t i = 0; i < n; ++i) y[i] = power(i);
    const Acc scale = 1 / LaneSum<Acc>(n, [=](int64_t i) { return y[i]; });
    for (int64_t i = 0; i < n; ++i) y[i] *= scale;
  } else {
    const Acc sum = LaneSum<Acc>(n, power);
    const Acc scale = 1 / sum;
#pragma GCC ivdep
    for (int64_t i = 0; i < n; ++i) y[i] = T(power(i) * scale);
  }
}

// Neighbouring lines, of n elements that are `stride` apart, side by side: vectors of lines.
// `width` of at most kColumns: a constant for most of them. Sums of runs are added up, which keeps
// long ones exact.
constexpr int64_t kColumns = 64;

template <Kind kind, typename T, typename Width>
inline void NormalizeColumns(const T* x, T* y, int64_t n, int64_t stride, Width width) {
  using Acc = Accumulator<T>;
  constexpr int64_t kTerms = 128;  // of a run
  Acc max[kColumns], sum[kColumns], run[kColumns];
  for (int64_t j = 0; j < width; ++j) max[j] = static_cast<Acc>(x[j]);
  for (int64_t i = 1; i < n; ++i) {
    const T* from = x + i * stride;
    for (int64_t j = 0; j < width; ++j) {
      const Acc v = static_cast<Acc>(from[j]);
      max[j] = v > max[j] ? v : max[j];
    }
  }
  std::fill_n(sum, kColumns, Acc(0));
  constexpr bool kKeeps = kind == Kind::kSoftmax && std::is_same_v<T, Acc>;  // the powers, in y
  for (int64_t first = 0; first < n; first += kTerms) {
    std::fill_n(run, kColumns, Acc(0));
    for (int64_t i = first; i < std::min(n, first + kTerms); ++i) {
      const T* from = x + i * stride;
      [[maybe_unused]] T* to = y + i * stride;
#pragma omp simd  // y is x, or shares nothing with it
      for (int64_t j = 0; j < width; ++j) {
        const Acc power = math::Exp(static_cast<Acc>(from[j]) - max[j]);
        run[j] += power;
        if constexpr (kKeeps) to[j] = power;
      }
    }
    for (int64_t j = 0; j < width; ++j) sum[j] += run[j];
  }
  for (int64_t j = 0; j < width; ++j)
    sum[j] = kind == Kind::kLogSoftmax ? math::Log(sum[j]) : 1 / sum[j];
  for (int64_t i = 0; i < n; ++i) {
    const T* from = x + i * stride;
    T* to = y + i * stride;
#pragma omp simd
    for (int64_t j = 0; j < width; ++j) {
      if constexpr (kKeeps) {
        to[j] *= sum[j];
      } else {
        const Acc shifted = static_cast<Acc>(from[j]) - max[j];
        to[j] = T(kind == Kind::kLogSoftmax ? shifted - sum[j] : math::Exp(shifted) * sum[j]);
      }
    }
  }
}

template <Kind kind, typename T>
void SetColumns(KernelInfo& info, AxisView view) {
  const int64_t blocks = (view.inner + kColumns - 1) / kColumns;
  const int64_t cost = 16 * view.count * std::min(view.inner, kColumns);
  info.SetCompute([=, threads = info.threads()](KernelContext& context) {
    const T* x = context.Input<T>(0);
    T* y = context.Output<T>(0);
    ParallelFor(threads, view.outer * blocks, 1 + kParallelGrain / cost,
                [=](int64_t first, int64_t last) {
                  OnBestIsa([&] {
                    for (int64_t block = first; block < last; ++block) {
                      const int64_t column = block % blocks * kColumns,
                                    at = block / blocks * view.count * view.inner + column,
                                    width = std::min(kColumns, view.inner - column);
                      const auto normalize = [&](auto columns) {
                        NormalizeColumns<kind>(x + at, y + at, view.count, view.inner, columns);
                      };
                      if (width == kColumns) normalize(std::integral_constant<int64_t, kColumns>());
                      else normalize(width);
                    }
                  });
                });
  });
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
          } else {
            OnBestIsa([&] {
              lines([=](const T* from, T* to) { NormalizeLine<kind>(from, to, view.count); });
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
  if (kind != Kind::kHardmax && dtype == DType::kBFloat16 && shape.elements() >= kSmallSoftmax) {
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
  DispatchFloat(dtype, [&](auto tag) {
    using T = typename decltype(tag)::type;
    if (kind != Kind::kHardmax && view.inner > 1) SetColumns<kind, T>(info, view);
    else SetPlain<kind, T>(info, view);
  });
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
