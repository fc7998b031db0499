// SPDX-License-Identifier: Apache-2.0
// Ops along one axis: CumSum, CumProd, LogCumSumExp, ArgMax, ArgMin.
#include <algorithm>
#include <cmath>
#include <limits>

#include "core/base/status_macros.h"
#include "core/kernels/kernel_registry.h"
#include "core/kernels/simd/best_isa.h"
#include "core/kernels/simd/float_math.h"
#include "core/kernels/simd/parallel.h"
#include "core/kernels/kernel.h"
#include "core/kernels/factory_checks.h"
#include "core/ops/reduction/axis_view.h"

namespace caesura {
namespace {

struct ScanMode {
  bool exclusive, reverse;
};

// Floats run in double (halves in float), integers wrap around.
template <typename T>
using ScanAccumulator =
    std::conditional_t<std::is_integral_v<T>, uint64_t,
                       std::conditional_t<std::is_same_v<T, float>, double, Accumulator<T>>>;

template <bool kProduct, typename T>
void Scan(const AxisView& view, ScanMode mode, const T* x, T* y, int threads) {
  using A = ScanAccumulator<T>;
  ForColumnBlocks(view, threads, [&](int64_t outer, int64_t column, int64_t columns) {
    A acc[kAxisColumns];
    std::fill(acc, acc + columns, A(kProduct ? 1 : 0));
    for (int64_t i = 0; i < view.count; ++i) {
      const int64_t row = mode.reverse ? view.count - 1 - i : i;
      const int64_t offset = (outer * view.count + row) * view.inner + column;
      for (int64_t j = 0; j < columns; ++j) {
        const A value = static_cast<A>(x[offset + j]), before = acc[j];
        acc[j] = kProduct ? before * value : before + value;
        y[offset + j] = static_cast<T>(mode.exclusive ? before : acc[j]);
      }
    }
  });
}

// Scan for an axis without neighbours: one running value.
template <bool kProduct, typename T>
void ScanLines(const AxisView& view, ScanMode mode, const T* x, T* y, int threads) {
  using A = ScanAccumulator<T>;
  const int64_t grain = std::max<int64_t>(1, kParallelGrain / std::max<int64_t>(1, view.count));
  ParallelFor(threads, view.outer, grain, [&](int64_t first, int64_t last) {
    for (int64_t line = first; line < last; ++line) {
      A acc = kProduct ? 1 : 0;
      for (int64_t i = 0; i < view.count; ++i) {
        const int64_t place = line * view.count + (mode.reverse ? view.count - 1 - i : i);
        const A value = static_cast<A>(x[place]), before = acc;
        acc = kProduct ? before * value : before + value;
        y[place] = static_cast<T>(mode.exclusive ? before : acc);
      }
    }
  });
}

template <bool kProduct>
Status CreateScan(KernelInfo& info) {
  const Shape& shape = info.InputShape(0);
  const std::vector<int64_t> axes = info.HostInts(1);
  if (axes.size() != 1)
    return info.Invalid("axis: expected one number, got " + std::to_string(axes.size()));
  ASSIGN_OR_RETURN(const int axis, CheckAxis(info, axes[0], shape.rank()));
  const AxisView view = ViewAxis(shape, axis);
  const ScanMode mode = {info.Attr<int64_t>("exclusive", 0) != 0,
                         info.Attr<int64_t>("reverse", 0) != 0};
  info.SetOutput(0, info.InputDType(0), shape);
  const bool known = DispatchNumeric(info.InputDType(0), [&](auto tag) {
    using T = typename decltype(tag)::type;
    info.SetCompute([view, mode, threads = info.threads()](KernelContext& context) {
      const T* x = context.Input<T>(0);
      T* y = context.Output<T>(0);
      if (view.inner == 1) {
        ScanLines<kProduct>(view, mode, x, y, threads);
      } else {
        Scan<kProduct>(view, mode, x, y, threads);
      }
    });
  });
  return known ? Status() : info.Refuse(std::string("takes no ") + DTypeName(info.InputDType(0)));
}

// Parts of a line that are worked on in vectors.
constexpr int64_t kPart = 256;

// Calls fn(offset of the line's first element) for each line of `view` on some thread.
template <typename Fn>
void ForLines(const AxisView& view, int threads, Fn fn) {
  const int64_t grain = std::max<int64_t>(1, kParallelGrain / std::max<int64_t>(1, view.count));
  ParallelFor(threads, view.outer * view.inner, grain, [&](int64_t first, int64_t last) {
    OnBestIsa([&] {
      for (int64_t line = first; line < last; ++line)
        fn(line / view.inner * view.count * view.inner + line % view.inner);
    });
  });
}

// y[i] = ln(e^x[0] + ... + e^x[i]) = m + ln(s): m is the largest of x[0] to x[i], s the sum of
// e^(x - m).
template <typename T>
void LogCumSumExpLine(const AxisView& view, const T* x, T* y) {
  using A = Accumulator<T>;
  const int64_t step = view.inner;
  A most = -std::numeric_limits<A>::infinity();
  double sum = 0;
  for (int64_t start = 0; start < view.count; start += kPart) {
    const int64_t n = std::min(kPart, view.count - start);
    A shift[kPart], added[kPart], kept[kPart], sums[kPart];
    for (int64_t i = 0; i < n; ++i) {
      added[i] = static_cast<A>(x[(start + i) * step]);
      kept[i] = most;
      most = added[i] > most ? added[i] : most;
      shift[i] = std::isfinite(most) ? most : A(0);
    }
#pragma omp simd
    for (int64_t i = 0; i < n; ++i) {
      added[i] = math::Exp(added[i] - shift[i]);
      kept[i] = math::Exp(kept[i] - shift[i]);
    }
    for (int64_t i = 0; i < n; ++i) {
      sum = sum * kept[i] + added[i];
      sums[i] = static_cast<A>(sum);
    }
#pragma omp simd
    for (int64_t i = 0; i < n; ++i) sums[i] = shift[i] + math::Log(sums[i]);
    for (int64_t i = 0; i < n; ++i) y[(start + i) * step] = static_cast<T>(sums[i]);
  }
}

// dx[i] = e^(x[i] - y[i]) r[i],  r[i] = dy[i] + e^(y[i] - y[i + 1]) r[i + 1]: no power exceeds 1.
template <typename T>
void LogCumSumExpGradLine(const AxisView& view, const T* dy, const T* x, const T* y, T* dx) {
  using A = Accumulator<T>;
  const int64_t step = view.inner;
  double sum = 0;
  for (int64_t end = view.count; end > 0; end -= std::min(kPart, end)) {
    const int64_t n = std::min(kPart, end), start = end - n;
    A own[kPart], next[kPart], share[kPart];
    for (int64_t i = 0; i < n; ++i) {
      const int64_t place = start + i;
      own[i] = static_cast<A>(y[place * step]);
      next[i] = place + 1 < view.count ? static_cast<A>(y[(place + 1) * step]) : own[i];
      share[i] = static_cast<A>(x[place * step]);
    }
#pragma omp simd
    for (int64_t i = 0; i < n; ++i) {
      share[i] = math::Exp(share[i] - own[i]);
      next[i] = own[i] == next[i] ? A(1) : math::Exp(own[i] - next[i]);
    }
    for (int64_t i = n; i-- > 0;) {
      sum = static_cast<A>(dy[(start + i) * step]) + next[i] * sum;
      dx[(start + i) * step] = static_cast<T>(share[i] * static_cast<A>(sum));
    }
  }
}

Status CreateLogCumSumExp(KernelInfo& info) {
  const Shape& shape = info.InputShape(0);
  ASSIGN_OR_RETURN(const int axis, CheckAxis(info, info.Attr<int64_t>("axis", -1), shape.rank()));
  const AxisView view = ViewAxis(shape, axis);
  info.SetOutput(0, info.InputDType(0), shape);
  DispatchFloat(info.InputDType(0), [&](auto tag) {
    using T = typename decltype(tag)::type;
    info.SetCompute([view, threads = info.threads()](KernelContext& context) {
      const T* x = context.Input<T>(0);
      T* y = context.Output<T>(0);
      ForLines(view, threads, [=](int64_t at) { LogCumSumExpLine(view, x + at, y + at); });
    });
  });
  return {};
}

Status CreateLogCumSumExpGrad(KernelInfo& info) {
  const Shape& shape = info.InputShape(1);
  for (int i : {0, 2}) {
    if (info.InputShape(i) != shape || info.InputDType(i) != info.InputDType(1))
      return info.Invalid("dY and Y of X's type expected");
  }
  ASSIGN_OR_RETURN(const int axis, CheckAxis(info, info.Attr<int64_t>("axis", -1), shape.rank()));
  const AxisView view = ViewAxis(shape, axis);
  info.SetOutput(0, info.InputDType(1), shape);
  DispatchFloat(info.InputDType(1), [&](auto tag) {
    using T = typename decltype(tag)::type;
    info.SetCompute([view, threads = info.threads()](KernelContext& context) {
      const T *dy = context.Input<T>(0), *x = context.Input<T>(1), *y = context.Input<T>(2);
      T* dx = context.Output<T>(0);
      ForLines(view, threads,
               [=](int64_t at) { LogCumSumExpGradLine(view, dy + at, x + at, y + at, dx + at); });
    });
  });
  return {};
}

// The first (or last) place of the extreme; a NaN beats every number, as in NumPy.
template <bool kMax, typename T>
void ArgExtreme(const AxisView& view, bool last_index, const T* x, int64_t* y, int threads) {
  using A = Accumulator<T>;
  ForColumnBlocks(view, threads, [&](int64_t outer, int64_t column, int64_t columns) {
    A best[kAxisColumns];
    int64_t place[kAxisColumns];
    const T* rows = x + outer * view.count * view.inner + column;
    for (int64_t j = 0; j < columns; ++j) {
      best[j] = rows[j];
      place[j] = 0;
    }
    for (int64_t i = 1; i < view.count; ++i) {
      for (int64_t j = 0; j < columns; ++j) {
        const A value = rows[i * view.inner + j];
        const bool ahead = kMax ? value > best[j] : value < best[j];
        const bool tie = last_index && (value == best[j] || (IsNaN(value) && IsNaN(best[j])));
        if (ahead || tie || (IsNaN(value) && !IsNaN(best[j]))) {
          best[j] = value;
          place[j] = i;
        }
      }
    }
    std::copy(place, place + columns, y + outer * view.inner + column);
  });
}

template <bool kMax>
Status CreateArgExtreme(KernelInfo& info) {
  const Shape& shape = info.InputShape(0);
  ASSIGN_OR_RETURN(const int axis, CheckAxis(info, info.Attr<int64_t>("axis", 0), shape.rank()));
  const AxisView view = ViewAxis(shape, axis);
  if (view.count == 0 && view.outer * view.inner > 0)
    return info.Invalid("axis: there is no element to choose from");
  std::vector<int64_t> dims = shape.dims();
  if (info.Attr<int64_t>("keepdims", 1) != 0) {
    dims[axis] = 1;
  } else {
    dims.erase(dims.begin() + axis);
  }
  info.SetOutput(0, DType::kInt64, Shape(dims));
  const bool last_index = info.Attr<int64_t>("select_last_index", 0) != 0;
  const bool known = DispatchNumeric(info.InputDType(0), [&](auto tag) {
    using T = typename decltype(tag)::type;
    info.SetCompute([view, last_index, threads = info.threads()](KernelContext& context) {
      ArgExtreme<kMax>(view, last_index, context.Input<T>(0), context.Output<int64_t>(0), threads);
    });
  });
  return known ? Status() : info.Refuse(std::string("takes no ") + DTypeName(info.InputDType(0)));
}

}  // namespace

void RegisterAlongAxis(KernelRegistry& registry) {
  const std::vector<Alias> reuse = {MayReuse(0, 0)};
  registry.Add({.op_type = "CumSum",
                .types = kNumericTypes,
                .host_inputs = {1},
                .aliases = reuse,
                .create = CreateScan<false>});
  registry.Add({.op_type = "CumProd",
                .types = kNumericTypes,
                .host_inputs = {1},
                .aliases = reuse,
                .create = CreateScan<true>});
  registry.Add({.op_type = "LogCumSumExp",
                .domain = kCaesuraDomain,
                .types = kFloatTypes,
                .create = CreateLogCumSumExp});
  registry.Add({.op_type = "LogCumSumExpGrad",
                .domain = kCaesuraDomain,
                .types = kFloatTypes,
                .create = CreateLogCumSumExpGrad});
  registry.Add({.op_type = "ArgMax", .types = kNumericTypes, .create = CreateArgExtreme<true>});
  registry.Add({.op_type = "ArgMin", .types = kNumericTypes, .create = CreateArgExtreme<false>});
}

}  // namespace caesura
