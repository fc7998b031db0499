// SPDX-License-Identifier: Apache-2.0
// LayerNormalization and RMSNormalization: every row (the axes from `axis` on) is normalised by its
// own statistics.
#include <cmath>

#include "core/base/status_macros.h"
#include "core/ops/normalization/row_parameter.h"
#include "core/kernels/kernel_registry.h"
#include "core/kernels/simd/best_isa.h"
#include "core/kernels/simd/parallel.h"
#include "core/kernels/simd/row_math.h"
#include "core/kernels/kernel.h"

namespace caesura {
namespace {

// Y = (X - mean) * inv_std * scale + bias; mean and inv_std are written in the type Stat where
// wanted.
template <typename T, typename Stat>
void SetLayerNorm(KernelInfo& info, const NormRows& rows, RowParameter scale, RowParameter bias) {
  using Acc = Accumulator<T>;
  const int threads = info.threads();
  const Acc epsilon = info.Attr<float>("epsilon", 1e-5f);
  const bool has_mean = info.HasOutput(1), has_inv_std = info.HasOutput(2);
  const int64_t n = rows.size, count = n == 0 && !has_mean && !has_inv_std ? 0 : rows.count;
  info.SetCompute([=](KernelContext& context) {
    const T* x = context.Input<T>(0);
    T* y = context.Output<T>(0);
    Stat* means = has_mean ? context.Output<Stat>(1) : nullptr;
    Stat* inv_stds = has_inv_std ? context.Output<Stat>(2) : nullptr;
    const T *s = scale.Row<T>(context), *b = bias.Row<T>(context);
    ParallelFor(threads, count, 1 + kParallelGrain / (4 * n + 1), [=](int64_t first, int64_t last) {
      OnBestIsa([=] {
        for (int64_t r = first; r < last; ++r) {
          const T* from = x + r * n;
          T* to = y + r * n;
          const Acc mean = RowSum(from, n) / static_cast<Acc>(n);
          const Acc inv_std =
              1 / std::sqrt(RowSquares(from, n, mean) / static_cast<Acc>(n) + epsilon);
          if (b != nullptr) {
#pragma omp simd
            for (int64_t i = 0; i < n; ++i)
              to[i] = T((Acc(from[i]) - mean) * inv_std * Acc(s[i]) + Acc(b[i]));
          } else {
#pragma omp simd
            for (int64_t i = 0; i < n; ++i) to[i] = T((Acc(from[i]) - mean) * inv_std * Acc(s[i]));
          }
          if (means != nullptr) means[r] = static_cast<Stat>(mean);
          if (inv_stds != nullptr) inv_stds[r] = static_cast<Stat>(inv_std);
        }
      });
    });
  });
}

// float32 where stash_type says so (the default), but never narrower than a float64 X asks in a
// graph of ours.
DType StatType(const KernelInfo& info) {
  const int64_t stash = info.Attr<int64_t>("stash_type", 1);
  for (int i : {1, 2}) {
    if (info.HasOutput(i) && info.GraphOutputDType(i) == DType::kFloat64) return DType::kFloat64;
  }
  return stash == 16 ? DType::kBFloat16 : DType::kFloat32;
}

Status CreateLayerNorm(KernelInfo& info) {
  const DType dtype = info.InputDType(0);
  ASSIGN_OR_RETURN(const NormRows rows, NormRows::Make(info, info.InputShape(0)));
  ASSIGN_OR_RETURN(const RowParameter scale,
                   RowParameter::Make(info, 1, info.InputShape(0), rows.stats));
  RowParameter bias;
  if (info.HasInput(2)) {
    ASSIGN_OR_RETURN(bias, RowParameter::Make(info, 2, info.InputShape(0), rows.stats));
  }
  const DType stat = StatType(info);
  info.SetOutput(0, dtype, info.InputShape(0));
  info.SetOutput(1, stat, rows.stats);
  info.SetOutput(2, stat, rows.stats);
  DispatchFloat(dtype, [&](auto tag) {
    using T = typename decltype(tag)::type;
    DispatchDType<float, double, BFloat16>(stat, [&](auto stat_tag) {
      SetLayerNorm<T, typename decltype(stat_tag)::type>(info, rows, scale, bias);
    });
  });
  return {};
}

// Y = X / sqrt(mean(X^2) + epsilon) * scale; the result has the scale's type V.
template <typename T, typename V>
void SetRmsNorm(KernelInfo& info, const NormRows& rows, RowParameter scale) {
  using Acc = Accumulator<T>;
  const int threads = info.threads();
  const Acc epsilon = info.Attr<float>("epsilon", 1e-5f);
  const int64_t n = rows.size, count = n == 0 ? 0 : rows.count;
  info.SetCompute([=](KernelContext& context) {
    const T* x = context.Input<T>(0);
    V* y = context.Output<V>(0);
    const V* s = scale.Row<V>(context);
    ParallelFor(threads, count, 1 + kParallelGrain / (3 * n + 1), [=](int64_t first, int64_t last) {
      OnBestIsa([=] {
        for (int64_t r = first; r < last; ++r) {
          const T* from = x + r * n;
          V* to = y + r * n;
          const Acc inv_rms =
              1 / std::sqrt(RowSquares(from, n, Acc(0)) / static_cast<Acc>(n) + epsilon);
#pragma omp simd
          for (int64_t i = 0; i < n; ++i) to[i] = V(Acc(from[i]) * inv_rms * Accumulator<V>(s[i]));
        }
      });
    });
  });
}

Status CreateRmsNorm(KernelInfo& info) {
  ASSIGN_OR_RETURN(const NormRows rows, NormRows::Make(info, info.InputShape(0)));
  ASSIGN_OR_RETURN(const RowParameter scale,
                   RowParameter::Make(info, 1, info.InputShape(0), rows.stats));
  info.SetOutput(0, info.InputDType(1), info.InputShape(0));
  DispatchFloat(info.InputDType(0), [&](auto tag) {
    using T = typename decltype(tag)::type;
    DispatchFloat(info.InputDType(1), [&](auto scale_tag) {
      SetRmsNorm<T, typename decltype(scale_tag)::type>(info, rows, scale);
    });
  });
  return {};
}

}  // namespace

void RegisterRowNorm(KernelRegistry& registry) {
  registry.Add({.op_type = "LayerNormalization",
                .types = kFloatTypes,
                .aliases = {MayReuse(0, 0)},
                .create = CreateLayerNorm});
  registry.Add({.op_type = "RMSNormalization",
                .types = kFloatTypes,
                .aliases = {MayReuse(0, 0)},
                .create = CreateRmsNorm});
}

}  // namespace caesura
