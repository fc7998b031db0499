// SPDX-License-Identifier: Apache-2.0
// Gradients of activations, element by element, and of softmax, row by row. The formulas stand in
// core/ops.
#include <algorithm>
#include <cmath>
#include <numbers>
#include <type_traits>

#include "core/base/status_macros.h"
#include "core/ops/elementwise/binary_kernel.h"
#include "core/ops/elementwise/unary_kernel.h"
#include "core/kernels/kernel_registry.h"
#include "core/kernels/simd/float_math.h"
#include "core/kernels/simd/row_math.h"
#include "core/kernels/factory_checks.h"

namespace caesura {
namespace {

// dX = fn(dY, other) for two inputs of one shape.
template <auto fn>
Status CreateGradient(KernelInfo& info) {
  ASSIGN_OR_RETURN(const BinaryShape shape, BroadcastSameType(info));
  if (info.InputShape(0) != info.InputShape(1)) {
    return info.Invalid("expected tensors of one shape, got " + info.InputShape(0).ToString() +
                        " and " + info.InputShape(1).ToString());
  }
  const int64_t count = shape.output.elements();
  info.SetOutput(0, info.InputDType(0), shape.output);
  DispatchFloat(info.InputDType(0), [&](auto tag) {
    using T = typename decltype(tag)::type;
    info.SetCompute([count, threads = info.threads()](KernelContext& context) {
      const T* dy = context.Input<T>(0);
      const T* other = context.Input<T>(1);
      T* dx = context.Output<T>(0);
      ParallelFor(threads, count, kUnaryGrain, [=](int64_t first, int64_t last) {
        OnBestIsa([=] {
#pragma omp simd
          for (int64_t i = first; i < last; ++i)
            dx[i] = Narrow<T>(fn(Widen(dy[i]), Widen(other[i])));
        });
      });
    });
  });
  return {};
}

// d/dx x Phi(x) = Phi(x) + x phi(x)
template <typename T>
T GeluSlope(T x) {
  const auto [density, share] = math::NormalAt(x);
  return share + x * density;
}

// With s = sigmoid(2 u), u = k (x + c x^3): d/dx x s = s + x s (1 - s) 2 k (1 + 3 c x^2)
template <typename T>
T GeluTanhSlope(T x) {
  constexpr T kScale = T(2 * std::numbers::sqrt2 * std::numbers::inv_sqrtpi), kCubic = T(0.044715);
  const T s = math::Sigmoid(kScale * (x + kCubic * x * x * x));
  return s + x * s * (1 - s) * kScale * (1 + 3 * kCubic * x * x);
}

Status CreateGeluGrad(KernelInfo& info) {
  const std::string approximate = info.Attr<std::string>("approximate", "none");
  if (approximate == "none")
    return CreateGradient<[](auto dy, auto x) { return dy * GeluSlope(x); }>(info);
  if (approximate == "tanh")
    return CreateGradient<[](auto dy, auto x) { return dy * GeluTanhSlope(x); }>(info);
  return info.Invalid("approximate: expected none or tanh, got '" + approximate + "'");
}

// --- DropoutGrad ---

// The mask is read as bytes, which select vectors; bools would branch.
template <typename T, typename A>
void MaskRow(const T* dy, const uint8_t* mask, A scale, T* dx, int64_t n) {
#pragma omp simd
  for (int64_t i = 0; i < n; ++i) {
    const A scaled = Widen(dy[i]) * scale;
    dx[i] = Narrow<T>(mask[i] != 0 ? scaled : A{0});
  }
}

template <typename T, typename R>
void SetDropoutGradCompute(KernelInfo& info) {
  const int64_t count = info.InputShape(0).elements();
  const bool has_ratio = info.HasInput(2);
  info.SetOutput(0, kDTypeOf<T>, info.InputShape(0));
  info.SetCompute([count, has_ratio, threads = info.threads()](KernelContext& context) {
    using A = Accumulator<T>;
    const T* dy = context.Input<T>(0);
    const uint8_t* mask = context.Input<uint8_t>(1);
    T* dx = context.Output<T>(0);
    const double ratio = has_ratio ? static_cast<double>(*context.Input<R>(2)) : 0.5;
    const A scale = static_cast<A>(ratio < 1 ? 1 / (1 - ratio) : 0.0);
    ParallelFor(threads, count, kParallelGrain, [=](int64_t first, int64_t last) {
      MaskRow(dy + first, mask + first, scale, dx + first, last - first);
    });
  });
}

Status CreateDropoutGrad(KernelInfo& info) {
  RETURN_IF_ERROR(CheckDType(info, 1, {DType::kBool}));
  if (info.InputShape(0) != info.InputShape(1)) return info.Invalid("mask: expected dY's shape");
  const DType ratio = info.HasInput(2) ? info.InputDType(2) : DType::kFloat32;
  if (info.HasInput(2) && info.InputShape(2).elements() != 1)
    return info.Invalid("ratio: expected a scalar");
  bool done = false;
  DispatchFloat(info.InputDType(0), [&](auto data) {
    done = DispatchFloat(ratio, [&](auto r) {
      SetDropoutGradCompute<typename decltype(data)::type, typename decltype(r)::type>(info);
    });
  });
  return done ? Status() : info.Refuse("has a ratio of an unexpected type");
}

// --- SoftmaxGrad, LogSoftmaxGrad ---

// dX = Y * (dY - sum(dY * Y))
struct SoftmaxRule {
  template <typename A>
  static A Term(A dy, A y) {
    return dy * y;
  }
  template <typename A>
  static A Result(A dy, A y, A sum) {
    return y * (dy - sum);
  }
};
// dX = dY - exp(Y) * sum(dY)
struct LogSoftmaxRule {
  template <typename A>
  static A Term(A dy, A) {
    return dy;
  }
  template <typename A>
  static A Result(A dy, A y, A sum) {
    return dy - math::Exp(y) * sum;
  }
};

// A row whose elements lie together. Sums run in lanes, added up at the end.
template <typename Rule, typename T>
void GradientOfRow(const T* dy, const T* y, T* dx, int64_t n) {
  using A = Accumulator<T>;
  const A sum =
      LaneSum<A>(n, [=](int64_t i) { return Rule::template Term<A>(Widen(dy[i]), Widen(y[i])); });
#pragma omp simd
  for (int64_t i = 0; i < n; ++i)
    dx[i] = Narrow<T>(Rule::template Result<A>(Widen(dy[i]), Widen(y[i]), sum));
}

// Neighbouring rows of n elements that are `stride` apart, side by side. `columns` of at most
// kRowColumns: a constant for most of them. Sums of runs are added up.
constexpr int64_t kRowColumns = 64;

template <typename Rule, typename T, typename Columns>
void GradientOfColumns(const T* dy, const T* y, T* dx, int64_t n, int64_t stride, Columns columns) {
  using A = Accumulator<T>;
  constexpr int64_t kTerms = 128;  // of a run
  A sums[kRowColumns] = {}, run[kRowColumns];
  for (int64_t first = 0; first < n; first += kTerms) {
    std::fill_n(run, kRowColumns, A(0));
    for (int64_t i = first; i < std::min(n, first + kTerms); ++i) {
      const T *left = dy + i * stride, *right = y + i * stride;
      for (int64_t j = 0; j < columns; ++j)
        run[j] += Rule::template Term<A>(Widen(left[j]), Widen(right[j]));
    }
    for (int64_t j = 0; j < columns; ++j) sums[j] += run[j];
  }
  for (int64_t k = 0; k < n * stride; k += stride) {
#pragma omp simd
    for (int64_t j = 0; j < columns; ++j) {
      dx[k + j] = Narrow<T>(Rule::template Result<A>(Widen(dy[k + j]), Widen(y[k + j]), sums[j]));
    }
  }
}

template <typename Rule, typename T>
void SetSoftmaxGradCompute(KernelInfo& info, int axis) {
  const Shape& shape = info.InputShape(0);
  const int64_t outer = shape.Elements(0, axis), n = shape[axis],
                inner = shape.Elements(axis + 1, shape.rank());
  const int64_t blocks = (inner + kRowColumns - 1) / kRowColumns;
  const int64_t width = n * std::min(inner, kRowColumns);
  info.SetOutput(0, kDTypeOf<T>, shape);
  info.SetCompute([=, threads = info.threads()](KernelContext& context) {
    const T* dy = context.Input<T>(0);
    const T* y = context.Input<T>(1);
    T* dx = context.Output<T>(0);
    const int64_t grain = std::max<int64_t>(1, kParallelGrain / std::max<int64_t>(1, width));
    ParallelFor(threads, outer * blocks, grain, [&](int64_t first, int64_t last) {
      for (int64_t item = first; item < last; ++item) {
        const int64_t column = item % blocks * kRowColumns, at = item / blocks * n * inner + column;
        if (inner == 1) {
          OnBestIsa([=] { GradientOfRow<Rule>(dy + at, y + at, dx + at, n); });
        } else {
          const int64_t rest = std::min(kRowColumns, inner - column);
          const auto multiply = [=](auto columns) {
            OnBestIsa(
                [=] { GradientOfColumns<Rule>(dy + at, y + at, dx + at, n, inner, columns); });
          };
          if (rest == kRowColumns) multiply(std::integral_constant<int64_t, kRowColumns>());
          else multiply(rest);
        }
      }
    });
  });
}

template <typename Rule>
Status CreateSoftmaxGrad(KernelInfo& info) {
  ASSIGN_OR_RETURN(const BinaryShape shape, BroadcastSameType(info));
  if (info.InputShape(0) != info.InputShape(1))
    return info.Invalid("expected dY and Y of one shape");
  ASSIGN_OR_RETURN(const int axis,
                   CheckAxis(info, info.Attr<int64_t>("axis", -1), shape.output.rank()));
  auto set = [&](auto tag) {
    SetSoftmaxGradCompute<Rule, typename decltype(tag)::type>(info, axis);
  };
  return DispatchFloat(info.InputDType(0), set) ? Status() : RefuseDType(info);
}

constexpr UnaryRow kRows[] = {
    {"ReluGrad", kFloatTypes,
     CreateGradient<[](auto dy, auto y) { return (y <= 0) ? decltype(dy){0} : dy; }>},
    {"GeluGrad", kFloatTypes, CreateGeluGrad},
    {"SigmoidGrad", kFloatTypes, CreateGradient<[](auto dy, auto y) { return dy * y * (1 - y); }>},
    {"TanhGrad", kFloatTypes, CreateGradient<[](auto dy, auto y) { return dy * (1 - y * y); }>},
    {"SoftmaxGrad", kFloatTypes, CreateSoftmaxGrad<SoftmaxRule>},
    {"LogSoftmaxGrad", kFloatTypes, CreateSoftmaxGrad<LogSoftmaxRule>},
    {"DropoutGrad", kFloatTypes, CreateDropoutGrad},
};

}  // namespace

void RegisterActivationGrad(KernelRegistry& registry) {
  for (const UnaryRow& row : kRows) {
    registry.Add({.op_type = row.op_type,
                  .domain = kCaesuraDomain,
                  .types = row.types,
                  .aliases = {MayReuse(0, 0)},
                  .create = row.create});
  }
}

}  // namespace caesura
