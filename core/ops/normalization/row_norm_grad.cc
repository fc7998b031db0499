// SPDX-License-Identifier: Apache-2.0
// Gradients of the row-wise normalisations. With x the normalised row and g = dY * scale:
//   LayerNormalizationGrad (dY, X, scale, mean, inv_std): dX = inv_std * (g - mean(g) - x * mean(g
//   x)),
//     dScale = sum over rows of dY x, dB = sum over rows of dY
//   RMSNormalizationGrad (dY, X, scale): the same without the mean
#include <algorithm>
#include <cmath>

#include "core/base/status_macros.h"
#include "core/ops/normalization/row_parameter.h"
#include "core/kernels/kernel_registry.h"
#include "core/kernels/simd/best_isa.h"
#include "core/kernels/simd/parallel.h"
#include "core/kernels/simd/row_math.h"
#include "core/kernels/kernel.h"
#include "core/kernels/factory_checks.h"

namespace caesura {
namespace {

// A row-wise gradient: sizes, and where the sums over rows are gathered, one part a thread.
struct RowGrad {
  int64_t count, size, parts, parameter_size;
  RowParameter scale;
  DType stat_type;  // kUndefined: statistics are worked out (RMS)
  double epsilon;
  size_t stats, sums;
  bool has_dx, has_dscale, has_dbias;
};

// A row of the gradients; adds to the sums over rows. `dx` may be `dy`, or null.
template <typename T>
void GradientOfRow(bool centred, int64_t n, const T* dy, const T* x, const T* scale,
                   Accumulator<T> mean, Accumulator<T> inv_std, T* dx, Accumulator<T>* d_scale,
                   Accumulator<T>* d_bias) {
  using Acc = Accumulator<T>;
  const auto [sum_g, sum_gx] = LaneSums<Acc>(n, [=](int64_t i, Acc* g, Acc* gx) {
    const Acc d = Acc(dy[i]), c = Acc(x[i]) - mean;
    *g = d * Acc(scale[i]);
    *gx = *g * c;
    d_scale[i] += d * (c * inv_std);
    d_bias[i] += d;
  });
  if (dx == nullptr) return;
  const Acc inverse = Acc(1) / static_cast<Acc>(n);
  const Acc mean_g = centred ? inverse * sum_g : Acc(0), mean_gx = inverse * inv_std * sum_gx;
#pragma omp simd
  for (int64_t i = 0; i < n; ++i) {
    const Acc normalised = (Acc(x[i]) - mean) * inv_std;
    dx[i] = T(inv_std * (Acc(dy[i]) * Acc(scale[i]) - mean_g - normalised * mean_gx));
  }
}

// Adds up the parts' sums in order and writes them as the parameter's gradient.
template <typename T>
void FoldParts(const RowGrad& k, Accumulator<T>* sums, int64_t stride, T* out) {
  for (int64_t part = 1; part < k.parts; ++part) {
    for (int64_t i = 0; i < k.size; ++i) sums[i] += sums[part * stride + i];
  }
  k.scale.Fold(sums, k.size, k.parameter_size, out);
}

template <typename T>
void RunRowGrad(const RowGrad& k, KernelContext& context) {
  using Acc = Accumulator<T>;
  const T *dy = context.Input<T>(0), *x = context.Input<T>(1), *scale = k.scale.Row<T>(context);
  T* dx = k.has_dx ? context.Output<T>(0) : nullptr;
  Acc* means = context.Scratch<Acc>(k.stats);
  Acc *inv_stds = means + k.count, *sums = context.Scratch<Acc>(k.sums);
  const bool centred = k.stat_type != DType::kUndefined;
  if (centred) {
    LoadFloats(k.stat_type, context.Input<void>(3), k.count, means);
    LoadFloats(k.stat_type, context.Input<void>(4), k.count, inv_stds);
  }
  std::fill_n(sums, 2 * k.parts * k.size, Acc(0));
  ParallelFor(static_cast<int>(k.parts), k.parts, 1, [=, &k](int64_t first, int64_t last) {
    for (int64_t part = first; part < last; ++part) {
      Acc *d_scale = sums + 2 * part * k.size, *d_bias = d_scale + k.size;
      const int64_t begin = k.count * part / k.parts, end = k.count * (part + 1) / k.parts;
      OnBestIsa([=, size = k.size, epsilon = static_cast<Acc>(k.epsilon)] {
        for (int64_t r = begin; r < end; ++r) {
          const T* row = x + r * size;
          const Acc mean = centred ? means[r] : Acc(0);
          const Acc inv_std =
              centred
                  ? inv_stds[r]
                  : 1 / std::sqrt(RowSquares(row, size, Acc(0)) / static_cast<Acc>(size) + epsilon);
          GradientOfRow(centred, size, dy + r * size, row, scale, mean, inv_std,
                        dx == nullptr ? nullptr : dx + r * size, d_scale, d_bias);
        }
      });
    }
  });
  if (k.has_dscale) FoldParts(k, sums, 2 * k.size, context.Output<T>(1));
  if (k.has_dbias) FoldParts(k, sums + k.size, 2 * k.size, context.Output<T>(2));
}

Status CreateRowGrad(KernelInfo& info, bool centred) {
  const DType dtype = info.InputDType(1);
  const Shape& x = info.InputShape(1);
  for (int i : {0, 2}) {
    if (info.InputDType(i) != dtype) return info.Refuse("dY, X and scale of different dtypes");
  }
  if (info.InputShape(0) != x)
    return info.Invalid("dY of X's shape expected, got " + info.InputShape(0).ToString());
  ASSIGN_OR_RETURN(const NormRows rows, NormRows::Make(info, x));
  RowGrad k{rows.count,
            rows.size,
            1,
            info.InputShape(2).elements(),
            {},
            DType::kUndefined,
            info.Attr<float>("epsilon", 1e-5f),
            0,
            0,
            info.HasOutput(0),
            info.HasOutput(1),
            info.HasOutput(2)};
  ASSIGN_OR_RETURN(k.scale, RowParameter::Make(info, 2, x, rows.stats));
  if (centred) {
    k.stat_type = info.InputDType(3);
    if (info.InputShape(3).elements() != k.count || info.InputShape(4).elements() != k.count ||
        info.InputDType(4) != k.stat_type || !kFloatTypes.Contains(k.stat_type)) {
      return info.Invalid("mean and inv_std of one float element a row expected");
    }
  }
  const int64_t rows_a_part = 1 + kParallelGrain / (8 * k.size + 1);
  k.parts = std::max<int64_t>(1, std::min<int64_t>(info.threads(), k.count / rows_a_part));
  const size_t number = dtype == DType::kFloat64 ? sizeof(double) : sizeof(float);
  k.stats = info.BookScratch(2 * k.count * number);
  k.sums = info.BookScratch(2 * k.parts * k.size * number);
  info.SetOutput(0, dtype, x);
  info.SetOutput(1, dtype, info.InputShape(2));
  info.SetOutput(2, dtype, info.InputShape(2));
  DispatchFloat(dtype, [&](auto tag) {
    using T = typename decltype(tag)::type;
    info.SetCompute([k](KernelContext& context) { RunRowGrad<T>(k, context); });
  });
  return {};
}

Status CreateLayerNormGrad(KernelInfo& info) { return CreateRowGrad(info, true); }
Status CreateRmsNormGrad(KernelInfo& info) { return CreateRowGrad(info, false); }

}  // namespace

void RegisterRowNormGrad(KernelRegistry& registry) {
  registry.Add({.op_type = "LayerNormalizationGrad",
                .domain = kCaesuraDomain,
                .types = kFloatTypes,
                .aliases = {MayReuse(0, 0)},
                .create = CreateLayerNormGrad});
  registry.Add({.op_type = "RMSNormalizationGrad",
                .domain = kCaesuraDomain,
                .types = kFloatTypes,
                .aliases = {MayReuse(0, 0)},
                .create = CreateRmsNormGrad});
}

}  // namespace caesura
