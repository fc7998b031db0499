// SPDX-License-Identifier: Apache-2.0
// GlobalAveragePool, GlobalMaxPool, GlobalLpPool, and MaxUnpool.
#include <cmath>

#include "core/base/status_macros.h"
#include "core/kernels/adapters/through_float.h"
#include "core/kernels/kernel_registry.h"
#include "core/kernels/simd/parallel.h"
#include "core/kernels/simd/row_math.h"
#include "core/kernels/kernel.h"
#include "core/kernels/factory_checks.h"
#include "core/kernels/windows/pool_geometry.h"

namespace caesura {
namespace {

// y[row] = reduce(image, count) for every channel of every sample.
template <typename Reduce>
Status SetGlobalPool(KernelInfo& info, Reduce reduce) {
  ASSIGN_OR_RETURN(const GlobalPoolShape shape, MakeGlobalPoolShape(info));
  const int64_t rows = shape.images, count = shape.count;
  const int threads = info.threads();
  DispatchFloat(info.InputDType(0), [&](auto tag) {
    using T = typename decltype(tag)::type;
    info.SetCompute([=](KernelContext& context) {
      const T* in = context.Input<T>(0);
      T* out = context.Output<T>(0);
      ParallelFor(threads, rows, 1 + kParallelGrain / (count + 1),
                  [=](int64_t first, int64_t last) {
                    for (int64_t r = first; r < last; ++r)
                      out[r] = T(reduce(in + r * count, count));
                  });
    });
  });
  return {};
}

Status CreateGlobalAverage(KernelInfo& info) {
  return SetGlobalPool(info, [](const auto* x, int64_t n) {
    const auto sum = RowSum(x, n);
    return sum / static_cast<decltype(sum)>(n);
  });
}

Status CreateGlobalMax(KernelInfo& info) {
  return SetGlobalPool(info, [](const auto* x, int64_t n) { return RowMax(x, n); });
}

Status CreateGlobalLp(KernelInfo& info) {
  const int64_t p = info.Attr<int64_t>("p", 2);
  if (p < 1) return info.Invalid("p of 1 or more expected");
  return SetGlobalPool(info, [p](const auto* x, int64_t n) {
    using Acc = decltype(RowSum(x, n));
    const Acc sum = LaneSum<Acc>(n, [x, p](int64_t i) {
      const Acc v = std::abs(static_cast<Acc>(x[i]));
      return p == 2 ? v * v : std::pow(v, static_cast<Acc>(p));
    });
    return p == 2 ? std::sqrt(sum) : std::pow(sum, Acc(1) / static_cast<Acc>(p));
  });
}

// The size before pooling, by kernel_shape, strides and pads.
Result<Shape> UnpooledShape(const KernelInfo& info) {
  const Shape& x = info.InputShape(0);
  using Ints = std::vector<int64_t>;
  const size_t axes = x.rank() < 2 ? 0 : x.rank() - 2;
  const Ints kernel = info.Attr<Ints>("kernel_shape", {}),
             strides = info.Attr<Ints>("strides", Ints(axes, 1)),
             pads = info.Attr<Ints>("pads", Ints(2 * axes, 0));
  if (axes == 0 || kernel.size() != axes || strides.size() != axes || pads.size() != 2 * axes) {
    return info.Invalid("kernel_shape, strides and pads do not fit X " + x.ToString());
  }
  std::vector<int64_t> dims = x.dims();
  for (size_t a = 0; a < axes; ++a) {
    dims[a + 2] = (dims[a + 2] - 1) * strides[a] + kernel[a] - pads[a] - pads[axes + a];
  }
  return CheckDims(info, std::move(dims), info.InputDType(0));
}

// Where element `index` of a tensor of shape `inner` lies in one of shape `outer` that holds it in
// its corner.
int64_t PlaceInCorner(const Shape& inner, const std::vector<int64_t>& outer_strides,
                      int64_t index) {
  int64_t at = 0;
  for (int d = inner.rank() - 1; d >= 0; --d) {
    at += index % inner[d] * outer_strides[d];
    index /= inner[d];
  }
  return at;
}

template <typename T>
void SetMaxUnpool(KernelInfo& info, const Shape& inner, const Shape& outer) {
  const int64_t count = info.InputShape(0).elements(), total = outer.elements(),
                limit = inner.elements();
  const bool same = inner == outer;
  info.SetCompute([=, strides = outer.Strides(),
                   label = info.node().Label()](KernelContext& context) -> Status {
    const T* x = context.Input<T>(0);
    const int64_t* indices = context.Input<int64_t>(1);
    T* y = context.Output<T>(0);
    std::fill_n(y, total, T(0));
    for (int64_t i = 0; i < count; ++i) {
      if (indices[i] < 0 || indices[i] >= limit) {
        return InvalidArgument(label + " index " + std::to_string(indices[i]) + " is outside [0, " +
                               std::to_string(limit) + ")");
      }
      y[same ? indices[i] : PlaceInCorner(inner, strides, indices[i])] = x[i];
    }
    return {};
  });
}

Status CreateMaxUnpool(KernelInfo& info) {
  if (info.InputShape(1) != info.InputShape(0))
    return info.Invalid("X and I of one shape expected");
  RETURN_IF_ERROR(CheckDType(info, 1, {DType::kInt64}));
  ASSIGN_OR_RETURN(const Shape inner, UnpooledShape(info));
  Shape outer = inner;
  if (info.HasInput(2)) {
    ASSIGN_OR_RETURN(outer, CheckDims(info, info.HostInts(2), info.InputDType(0)));
  }
  bool fits = outer.rank() == inner.rank();
  for (int d = 0; fits && d < inner.rank(); ++d) fits = outer[d] >= inner[d];
  if (!fits)
    return info.Invalid("output_shape " + outer.ToString() + " cannot hold " + inner.ToString());
  info.SetOutput(0, info.InputDType(0), outer);
  DispatchDType<float, double>(info.InputDType(0), [&](auto tag) {
    SetMaxUnpool<typename decltype(tag)::type>(info, inner, outer);
  });
  return {};
}

}  // namespace

void RegisterPoolGlobal(KernelRegistry& registry) {
  registry.Add(
      {.op_type = "GlobalAveragePool", .types = kFloatTypes, .create = CreateGlobalAverage});
  registry.Add({.op_type = "GlobalMaxPool", .types = kFloatTypes, .create = CreateGlobalMax});
  registry.Add({.op_type = "GlobalLpPool", .types = kFloatTypes, .create = CreateGlobalLp});
  registry.Add({.op_type = "MaxUnpool",
                .types = {DType::kFloat32, DType::kFloat64},
                .host_inputs = {2},
                .create = CreateMaxUnpool});
  registry.Add({.op_type = "MaxUnpool",
                .types = {DType::kFloat16, DType::kBFloat16},
                .host_inputs = {2},
                .create = ThroughFloat<CreateMaxUnpool>});
}

}  // namespace caesura
