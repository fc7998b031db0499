// SPDX-License-Identifier: Apache-2.0
// Gradients of products, none of which divides by an element, so that zeros are no exception:
// CumProdGrad, ReduceProdGrad, DetGrad (core/ops).
#include <algorithm>
#include <cmath>
#include <numeric>

#include "core/base/status_macros.h"
#include "core/kernels/kernel_registry.h"
#include "core/kernels/simd/parallel.h"
#include "core/kernels/kernel.h"
#include "core/kernels/factory_checks.h"
#include "core/kernels/walks/odometer.h"
#include "core/ops/reduction/reduction_spec.h"

namespace caesura {
namespace {

// Element (o, i, j) of [outer, count, inner]; i runs against the axis when the product did.
struct ScanSpec {
  int64_t outer, count, inner;
  bool exclusive, reverse;
  int threads;
  int64_t Offset(int64_t o, int64_t i, int64_t j) const {
    return (o * count + (reverse ? count - 1 - i : i)) * inner + j;
  }
};

// y[i] = x[0] ... x[i]:  dx[k] = (x[0] ... x[k-1]) * s[k],  s[k] = dy[k] + x[k+1] * s[k+1].
// Exclusive, y[i] = x[0] ... x[i-1]:  s[k] = dy[k+1] + x[k+1] * s[k+1].  `before` holds the leading
// products.
template <typename T>
void CumProdGradient(const ScanSpec& at, const T* dy, const T* x, Accumulator<T>* before, T* dx) {
  using A = Accumulator<T>;
  const int64_t grain = std::max<int64_t>(1, kParallelGrain / std::max<int64_t>(1, at.count));
  ParallelFor(at.threads, at.outer * at.inner, grain, [&](int64_t first, int64_t last) {
    for (int64_t line = first; line < last; ++line) {
      const int64_t o = line / at.inner, j = line % at.inner;
      A product = 1, next = 0;
      for (int64_t k = 0; k < at.count; ++k) {
        const int64_t place = at.Offset(o, k, j);
        before[place] = product;
        product *= static_cast<A>(x[place]);
      }
      for (int64_t k = at.count - 1; k >= 0; --k) {
        const int64_t place = at.Offset(o, k, j), after = at.Offset(o, k + 1, j);
        const bool ends = k + 1 == at.count;
        const A own = !at.exclusive ? static_cast<A>(dy[place])
                      : ends        ? A(0)
                                    : static_cast<A>(dy[after]);
        next = own + (ends ? A(0) : static_cast<A>(x[after]) * next);
        dx[place] = static_cast<T>(before[place] * next);
      }
    }
  });
}

Status CheckAlike(const KernelInfo& info, const Shape& dy, const Shape& expected) {
  if (dy == expected && info.InputDType(0) == info.InputDType(1)) return {};
  return info.Invalid("dY: expected " + std::string(DTypeName(info.InputDType(1))) +
                      expected.ToString() + ", got " + DTypeName(info.InputDType(0)) +
                      dy.ToString());
}

Status CreateCumProdGrad(KernelInfo& info) {
  const Shape& shape = info.InputShape(1);
  RETURN_IF_ERROR(CheckAlike(info, info.InputShape(0), shape));
  const std::vector<int64_t> axes = info.HostInts(2);
  if (axes.size() != 1) return info.Invalid("axis: expected one number");
  ASSIGN_OR_RETURN(const int axis, CheckAxis(info, axes[0], shape.rank()));
  const ScanSpec spec = {shape.Elements(0, axis),
                         shape[axis],
                         shape.Elements(axis + 1, shape.rank()),
                         info.Attr<int64_t>("exclusive", 0) != 0,
                         info.Attr<int64_t>("reverse", 0) != 0,
                         info.threads()};
  info.SetOutput(0, info.InputDType(1), shape);
  DispatchFloat(info.InputDType(1), [&](auto tag) {
    using T = typename decltype(tag)::type;
    using A = Accumulator<T>;
    const size_t scratch = info.BookScratch(shape.elements() * sizeof(A));
    info.SetCompute([spec, scratch](KernelContext& context) {
      CumProdGradient(spec, context.Input<T>(0), context.Input<T>(1), context.Scratch<A>(scratch),
                      context.Output<T>(0));
    });
  });
  return {};
}

// The places of X that each output reduces: every kept cell (with its kept inner axis) plus every
// reduced offset.
struct ProductSpec {
  ReductionSpec plan;
  std::vector<int64_t> reduced;  // offsets of the elements of one product, in order
  // True where no axes were given. As in PyTorch, the gradient of such a product is zero if two of
  // its elements are, whatever dY is (NaN, infinity).
  bool of_all;
  int threads;
};

std::vector<int64_t> ReducedOffsets(const ReductionSpec& plan) {
  std::vector<int64_t> out;
  if (plan.count == 0) return out;
  Odometer<1> walk(plan.reduced_extents, {&plan.reduced_strides});
  const int64_t inner = plan.inner_reduced ? plan.inner : 1;
  for (int64_t cell = 0; cell < plan.reduced_cells; ++cell, walk.Next()) {
    for (int64_t i = 0; i < inner; ++i) out.push_back(walk.offset(0) + i);
  }
  return out;
}

// dx[k] = dy * (x[0] ... x[k-1]) * (x[k+1] ... x[n-1])
template <typename T>
void ProductGradient(const ProductSpec& at, const T* dy, const T* x, Accumulator<T>* before,
                     T* dx) {
  using A = Accumulator<T>;
  const int64_t columns = at.plan.inner_reduced ? 1 : at.plan.inner;
  const int64_t count = static_cast<int64_t>(at.reduced.size());
  const int64_t grain =
      std::max<int64_t>(1, kParallelGrain / std::max<int64_t>(1, count * columns));
  ParallelFor(at.threads, at.plan.kept_cells, grain, [&](int64_t first, int64_t last) {
    Odometer<1> walk(at.plan.kept_extents, {&at.plan.kept_strides});
    walk.Seek(first);
    for (int64_t cell = first; cell < last; ++cell, walk.Next()) {
      for (int64_t j = 0; j < columns; ++j) {
        const int64_t base = walk.offset(0) + j;
        A product = 1;
        int64_t zeros = 0;
        for (int64_t k = 0; k < count; ++k) {
          const A factor = static_cast<A>(x[base + at.reduced[k]]);
          before[base + at.reduced[k]] = product;
          product *= factor;
          zeros += factor == 0;
        }
        if (at.of_all && zeros > 1) {
          for (const int64_t offset : at.reduced) dx[base + offset] = T(0);
          continue;
        }
        A after = static_cast<A>(dy[cell * columns + j]);
        for (int64_t k = count - 1; k >= 0; --k) {
          const int64_t place = base + at.reduced[k];
          dx[place] = static_cast<T>(before[place] * after);
          after *= static_cast<A>(x[place]);
        }
      }
    }
  });
}

Status CreateReduceProdGrad(KernelInfo& info) {
  const Shape& shape = info.InputShape(1);
  ASSIGN_OR_RETURN(const std::vector<bool> mask, ReducedAxes(info, shape, 2));
  RETURN_IF_ERROR(CheckAlike(info, info.InputShape(0),
                             ReducedShape(shape, mask, info.Attr<int64_t>("keepdims", 1) != 0)));
  ProductSpec spec = {MakeReductionPlan(shape, mask), {}, info.HostInts(2).empty(), info.threads()};
  spec.reduced = ReducedOffsets(spec.plan);
  info.SetOutput(0, info.InputDType(1), shape);
  DispatchFloat(info.InputDType(1), [&](auto tag) {
    using T = typename decltype(tag)::type;
    using A = Accumulator<T>;
    const size_t scratch = info.BookScratch(shape.elements() * sizeof(A));
    info.SetCompute([spec, scratch, total = shape.elements()](KernelContext& context) {
      if (total == 0) return;
      ProductGradient(spec, context.Input<T>(0), context.Input<T>(1), context.Scratch<A>(scratch),
                      context.Output<T>(0));
    });
  });
  return {};
}

// Factors the n x n matrix at `a` in place with partial pivoting, carrying `b` (n x m) along;
// returns the determinant. `smallest` is the least pivot relative to the largest.
double Eliminate(int64_t n, double* a, int64_t m, double* b, double& smallest) {
  double det = 1, least = INFINITY, most = 0;
  for (int64_t c = 0; c < n; ++c) {
    int64_t pivot = c;
    for (int64_t r = c + 1; r < n; ++r) {
      if (std::abs(a[r * n + c]) > std::abs(a[pivot * n + c])) pivot = r;
    }
    if (pivot != c) {
      std::swap_ranges(a + c * n, a + (c + 1) * n, a + pivot * n);
      std::swap_ranges(b + c * m, b + (c + 1) * m, b + pivot * m);
      det = -det;
    }
    const double p = a[c * n + c];
    det *= p;
    least = std::min(least, std::abs(p));
    most = std::max(most, std::abs(p));
    if (p == 0) continue;
    for (int64_t r = c + 1; r < n; ++r) {
      const double factor = a[r * n + c] / p;
      for (int64_t k = c; k < n; ++k) a[r * n + k] -= factor * a[c * n + k];
      for (int64_t k = 0; k < m; ++k) b[r * m + k] -= factor * b[c * m + k];
    }
  }
  smallest = most > 0 ? least / most : 0;
  return det;
}

// cofactor[i, j] = (-1)^(i + j) * det(x without row i and column j), each by its own elimination:
// for matrices that have no inverse.
void CofactorsByMinors(int64_t n, const double* x, double* minor, double* cofactors) {
  for (int64_t i = 0; i < n; ++i) {
    for (int64_t j = 0; j < n; ++j) {
      double* to = minor;
      for (int64_t r = 0; r < n; ++r) {
        for (int64_t c = 0; c < n; ++c) {
          if (r != i && c != j) *to++ = x[r * n + c];
        }
      }
      double unused;
      cofactors[i * n + j] = ((i + j) % 2 ? -1 : 1) * Eliminate(n - 1, minor, 0, minor, unused);
    }
  }
}

// cofactors = det(x) * transposed inverse of x. `work` has room for 2 * n * n.
void Cofactors(int64_t n, const double* x, double* work, double* cofactors) {
  double* a = work;
  double* b = work + n * n;
  std::copy(x, x + n * n, a);
  std::fill(b, b + n * n, 0.0);
  for (int64_t i = 0; i < n; ++i) b[i * n + i] = 1;
  double smallest;
  const double det = Eliminate(n, a, n, b, smallest);
  if (!(smallest > 1e-10)) {
    CofactorsByMinors(n, x, work, cofactors);
    return;
  }
  for (int64_t c = 0; c < n;
       ++c) {  // back substitution: column c of the inverse is row c of its transpose
    for (int64_t r = n - 1; r >= 0; --r) {
      double value = b[r * n + c];
      for (int64_t k = r + 1; k < n; ++k) value -= a[r * n + k] * cofactors[c * n + k];
      cofactors[c * n + r] = value / a[r * n + r];
    }
  }
  for (int64_t i = 0; i < n * n; ++i) cofactors[i] *= det;
}

// dX = dY * d det(X) / dX = dY * cofactors of X
Status CreateDetGrad(KernelInfo& info) {
  const Shape& shape = info.InputShape(1);
  const int rank = shape.rank();
  if (rank < 2 || shape[rank - 1] != shape[rank - 2]) {
    return info.Invalid("X: expected square matrices, got " + shape.ToString());
  }
  RETURN_IF_ERROR(CheckAlike(info, info.InputShape(0),
                             Shape(std::vector<int64_t>(shape.begin(), shape.end() - 2))));
  const int64_t n = shape[rank - 1], matrices = shape.Elements(0, rank - 2);
  const size_t scratch = info.BookScratch(4 * n * n * sizeof(double));
  info.SetOutput(0, info.InputDType(1), shape);
  DispatchFloat(info.InputDType(1), [&](auto tag) {
    using T = typename decltype(tag)::type;
    info.SetCompute([n, matrices, scratch](KernelContext& context) {
      const T *dy = context.Input<T>(0), *x = context.Input<T>(1);
      T* dx = context.Output<T>(0);
      double* matrix = context.Scratch<double>(scratch);
      double* cofactors = matrix + n * n;
      for (int64_t m = 0; m < matrices; ++m) {
        for (int64_t i = 0; i < n * n; ++i) matrix[i] = static_cast<double>(x[m * n * n + i]);
        Cofactors(n, matrix, matrix + 2 * n * n, cofactors);
        for (int64_t i = 0; i < n * n; ++i) {
          dx[m * n * n + i] = static_cast<T>(static_cast<double>(dy[m]) * cofactors[i]);
        }
      }
    });
  });
  return {};
}

}  // namespace

void RegisterProductGrad(KernelRegistry& registry) {
  const char* domain = kCaesuraDomain;
  registry.Add({.op_type = "CumProdGrad",
                .domain = domain,
                .types = kFloatTypes,
                .host_inputs = {2},
                .create = CreateCumProdGrad});
  registry.Add({.op_type = "ReduceProdGrad",
                .domain = domain,
                .types = kFloatTypes,
                .host_inputs = {2},
                .create = CreateReduceProdGrad});
  registry.Add(
      {.op_type = "DetGrad", .domain = domain, .types = kFloatTypes, .create = CreateDetGrad});
}

}  // namespace caesura
