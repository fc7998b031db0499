// SPDX-License-Identifier: Apache-2.0
// LpNormalization, MeanVarianceNormalization and LRN.
#include <cmath>

#include "core/base/status_macros.h"
#include "core/kernels/kernel_registry.h"
#include "core/kernels/simd/parallel.h"
#include "core/kernels/simd/row_math.h"
#include "core/kernels/kernel.h"
#include "core/kernels/factory_checks.h"
#include "core/kernels/walks/odometer.h"

namespace caesura {
namespace {

// Y = X / (sum |X|^p)^(1/p) along the axis; 0 where the norm is 0.
template <typename T>
void SetLpNorm(KernelInfo& info, int64_t p, int64_t n, int64_t inner) {
  using Acc = Accumulator<T>;
  const int threads = info.threads();
  const int64_t lines = n == 0 ? 0 : info.InputShape(0).elements() / n;
  info.SetCompute([=](KernelContext& context) {
    const T* x = context.Input<T>(0);
    T* y = context.Output<T>(0);
    ParallelFor(threads, lines, 1 + kParallelGrain / (3 * n + 1), [=](int64_t first, int64_t last) {
      for (int64_t line = first; line < last; ++line) {
        const int64_t at = line / inner * n * inner + line % inner;
        Acc sum = 0;
        for (int64_t i = 0; i < n; ++i) {
          const Acc v = x[at + i * inner];
          sum += p == 1 ? std::abs(v) : v * v;
        }
        const Acc norm = p == 1 ? sum : std::sqrt(sum);
        for (int64_t i = 0; i < n; ++i) {
          const int64_t k = at + i * inner;
          y[k] = norm == Acc(0) ? T(0.0f) : T(Acc(x[k]) / norm);
        }
      }
    });
  });
}

Status CreateLpNorm(KernelInfo& info) {
  const Shape& x = info.InputShape(0);
  const int64_t p = info.Attr<int64_t>("p", 2);
  if (p != 1 && p != 2) return info.Invalid("p must be 1 or 2, got " + std::to_string(p));
  ASSIGN_OR_RETURN(const int axis, CheckAxis(info, info.Attr<int64_t>("axis", -1), x.rank()));
  info.SetOutput(0, info.InputDType(0), x);
  DispatchFloat(info.InputDType(0), [&](auto tag) {
    SetLpNorm<typename decltype(tag)::type>(info, p, x[axis], x.Elements(axis + 1, x.rank()));
  });
  return {};
}

// A box of cells [kept][reduced] over X.
struct Box {
  std::vector<int64_t> kept, kept_strides, reduced, reduced_strides;
  int64_t kept_count = 1, reduced_count = 1;
};

// Y = (X - mean) / (sqrt(mean((X - mean)^2)) + 1e-9), as the op's function body has it.
template <typename T>
void SetMeanVariance(KernelInfo& info, Box box) {
  using Acc = Accumulator<T>;
  const int threads = info.threads();
  info.SetCompute([=, box = std::move(box)](KernelContext& context) {
    const T* x = context.Input<T>(0);
    T* y = context.Output<T>(0);
    const int64_t grain = 1 + kParallelGrain / (8 * box.reduced_count);
    ParallelFor(threads, box.kept_count, grain, [&](int64_t first, int64_t last) {
      Odometer<1> outer(box.kept, {&box.kept_strides}), inner(box.reduced, {&box.reduced_strides});
      outer.Seek(first);
      for (int64_t k = first; k < last; ++k, outer.Next()) {
        const int64_t at = outer.offset(0);
        double sum = 0, squares = 0;
        inner.Seek(0);
        for (int64_t i = 0; i < box.reduced_count; ++i, inner.Next())
          sum += Acc(x[at + inner.offset(0)]);
        const double mean = sum / static_cast<double>(box.reduced_count);
        for (int64_t i = 0; i < box.reduced_count; ++i, inner.Next()) {
          const double d = Acc(x[at + inner.offset(0)]) - mean;
          squares += d * d;
        }
        const double std_dev = std::sqrt(squares / static_cast<double>(box.reduced_count)) + 1e-9;
        for (int64_t i = 0; i < box.reduced_count; ++i, inner.Next()) {
          const int64_t p = at + inner.offset(0);
          y[p] = T(static_cast<Acc>((Acc(x[p]) - mean) / std_dev));
        }
      }
    });
  });
}

Status CreateMeanVariance(KernelInfo& info) {
  const Shape& x = info.InputShape(0);
  ASSIGN_OR_RETURN(const std::vector<int> axes,
                   CheckAxes(info, info.Attr<std::vector<int64_t>>("axes", {0, 2, 3}), x.rank()));
  if (x.rank() > kMaxWalkAxes)
    return info.Refuse("more than " + std::to_string(kMaxWalkAxes) + " axes");
  const std::vector<int64_t> strides = x.Strides();
  Box box;
  for (int d = 0; d < x.rank(); ++d) {
    const bool reduced = std::find(axes.begin(), axes.end(), d) != axes.end();
    (reduced ? box.reduced : box.kept).push_back(x[d]);
    (reduced ? box.reduced_strides : box.kept_strides).push_back(strides[d]);
    (reduced ? box.reduced_count : box.kept_count) *= x[d];
  }
  info.SetOutput(0, info.InputDType(0), x);
  if (x.elements() == 0) {
    info.SetCompute([](KernelContext&) {});
    return {};
  }
  DispatchFloat(info.InputDType(0), [&](auto tag) {
    SetMeanVariance<typename decltype(tag)::type>(info, std::move(box));
  });
  return {};
}

// Y = X / (bias + alpha / size * sum of squares over neighbouring channels)^beta.
template <typename T>
void SetLrn(KernelInfo& info, int64_t batch, int64_t channels, int64_t positions) {
  using Acc = Accumulator<T>;
  const int64_t size = info.Attr<int64_t>("size", 1), below = (size - 1) / 2, above = size / 2;
  const Acc bias = info.Attr<float>("bias", 1.0f), beta = info.Attr<float>("beta", 0.75f);
  const Acc factor = info.Attr<float>("alpha", 0.0001f) / static_cast<Acc>(size);
  const int threads = info.threads();
  info.SetCompute([=](KernelContext& context) {
    const T* x = context.Input<T>(0);
    T* y = context.Output<T>(0);
    const int64_t grain = 1 + kParallelGrain / (positions * (20 + size) + 1);
    ParallelFor(threads, batch * channels, grain, [=](int64_t first, int64_t last) {
      for (int64_t row = first; row < last; ++row) {
        const int64_t c = row % channels, from = std::max<int64_t>(0, c - below),
                      to = std::min(channels - 1, c + above);
        const T* image = x + (row - c) * positions;
        for (int64_t i = 0; i < positions; ++i) {
          Acc sum = 0;
          for (int64_t k = from; k <= to; ++k) {
            const Acc v = image[k * positions + i];
            sum += v * v;
          }
          y[row * positions + i] =
              T(Acc(x[row * positions + i]) / std::pow(bias + factor * sum, beta));
        }
      }
    });
  });
}

Status CreateLrn(KernelInfo& info) {
  const Shape& x = info.InputShape(0);
  if (x.rank() < 2) return info.Invalid("X of rank 2 or more expected, got " + x.ToString());
  if (info.Attr<int64_t>("size", 0) <= 0) return info.Invalid("a positive size expected");
  info.SetOutput(0, info.InputDType(0), x);
  DispatchFloat(info.InputDType(0), [&](auto tag) {
    SetLrn<typename decltype(tag)::type>(info, x[0], x[1], x.Elements(2, x.rank()));
  });
  return {};
}

}  // namespace

void RegisterLpNorm(KernelRegistry& registry) {
  registry.Add({.op_type = "LpNormalization",
                .types = kFloatTypes,
                .aliases = {MayReuse(0, 0)},
                .create = CreateLpNorm});
  registry.Add({.op_type = "MeanVarianceNormalization",
                .types = kFloatTypes,
                .aliases = {MayReuse(0, 0)},
                .create = CreateMeanVariance});
  registry.Add({.op_type = "LRN", .types = kFloatTypes, .create = CreateLrn});
}

}  // namespace caesura
