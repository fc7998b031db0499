// SPDX-License-Identifier: Apache-2.0
// Det: the product of the pivots of an LU factorisation with partial pivoting, for a stack of
// square matrices.
#include <cmath>
#include <utility>

#include "core/kernels/adapters/through_float.h"
#include "core/kernels/kernel.h"
#include "core/kernels/kernel_registry.h"

namespace caesura {
namespace {

// Destroys `a` [n, n]. A pivot that is NaN gives NaN, beside a pivot of 0, too.
template <typename T>
T Determinant(T* a, int64_t n) {
  T det = 1;
  for (int64_t p = 0; p < n; ++p) {
    int64_t best = p;
    for (int64_t r = p + 1; r < n; ++r) {
      if (!(std::abs(a[r * n + p]) <= std::abs(a[best * n + p]))) best = r;
    }
    const T pivot = a[best * n + p];
    if (best != p) {
      for (int64_t c = 0; c < n; ++c) std::swap(a[best * n + c], a[p * n + c]);
      det = -det;
    }
    det *= pivot;
    if (pivot == T(0)) continue;
    for (int64_t r = p + 1; r < n; ++r) {
      const T factor = a[r * n + p] / pivot;
      for (int64_t c = p + 1; c < n; ++c) a[r * n + c] -= factor * a[p * n + c];
    }
  }
  return det;
}

template <typename T>
void SetDet(KernelInfo& info, int64_t count, int64_t n) {
  const size_t work = info.BookScratch(n * n * sizeof(T));
  info.SetCompute([=](KernelContext& context) {
    const T* x = context.Input<T>(0);
    T* y = context.Output<T>(0);
    T* a = context.Scratch<T>(work);
    for (int64_t i = 0; i < count; ++i) {
      std::copy(x + i * n * n, x + (i + 1) * n * n, a);
      y[i] = Determinant(a, n);
    }
  });
}

Status CreateDet(KernelInfo& info) {
  const Shape& x = info.InputShape(0);
  const int rank = x.rank();
  if (rank < 2 || x[rank - 1] != x[rank - 2])
    return info.Invalid("square matrices expected, got " + x.ToString());
  const Shape y(std::vector<int64_t>(x.begin(), x.end() - 2));
  info.SetOutput(0, info.InputDType(0), y);
  if (info.InputDType(0) == DType::kFloat64) {
    SetDet<double>(info, y.elements(), x[rank - 1]);
  } else {
    SetDet<float>(info, y.elements(), x[rank - 1]);
  }
  return {};
}

}  // namespace

void RegisterDet(KernelRegistry& registry) {
  registry.Add(
      {.op_type = "Det", .types = {DType::kFloat32, DType::kFloat64}, .create = CreateDet});
  registry.Add({.op_type = "Det",
                .types = {DType::kFloat16, DType::kBFloat16},
                .create = ThroughFloat<CreateDet>});
}

}  // namespace caesura
