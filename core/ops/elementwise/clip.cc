// SPDX-License-Identifier: Apache-2.0
// Clip, as ONNX has it.
#include <limits>
#include <string>

#include "core/kernels/kernel_registry.h"
#include "core/ops/elementwise/unary_kernel.h"

namespace caesura {
namespace {

// min(high, max(x, low)): where the bounds cross, `high` wins; a NaN goes through.
template <typename T, typename A>
void ClipRow(const T* x, T* y, int64_t n, A low, A high) {
#pragma omp simd
  for (int64_t i = 0; i < n; ++i) {
    const A v = Widen(x[i]);
    const A raised = v < low ? low : v;
    y[i] = Narrow<T>(raised > high ? high : raised);
  }
}

// An absent bound does not bound.
template <typename T>
void SetClipCompute(KernelInfo& info) {
  using Limits = std::numeric_limits<Accumulator<T>>;
  using A = Accumulator<T>;
  const A lowest = Limits::has_infinity ? -Limits::infinity() : Limits::lowest();
  const A highest = Limits::has_infinity ? Limits::infinity() : Limits::max();
  const int64_t count = info.InputShape(0).elements();
  const bool has_min = info.HasInput(1), has_max = info.HasInput(2);
  info.SetOutput(0, kDTypeOf<T>, info.InputShape(0));
  info.SetCompute([=, threads = info.threads()](KernelContext& context) {
    const T* x = context.Input<T>(0);
    T* y = context.Output<T>(0);
    const A low = has_min ? static_cast<A>(*context.Input<T>(1)) : lowest;
    const A high = has_max ? static_cast<A>(*context.Input<T>(2)) : highest;
    ParallelFor(threads, count, kParallelGrain, [=](int64_t first, int64_t last) {
      ClipRow(x + first, y + first, last - first, low, high);
    });
  });
}

Status CreateClip(KernelInfo& info) {
  for (int i = 1; i <= 2; ++i) {
    if (!info.HasInput(i)) continue;
    if (info.InputDType(i) != info.InputDType(0)) {
      return info.Invalid(std::string("bounds: expected ") + DTypeName(info.InputDType(0)) +
                          ", got " + DTypeName(info.InputDType(i)));
    }
    if (info.InputShape(i).elements() != 1) {
      return info.Invalid("bounds: expected scalars, got shape " + info.InputShape(i).ToString());
    }
  }
  auto set = [&](auto tag) { SetClipCompute<typename decltype(tag)::type>(info); };
  return DispatchNumeric(info.InputDType(0), set) ? Status() : RefuseDType(info);
}

}  // namespace

void RegisterClip(KernelRegistry& registry) {
  registry.Add({.op_type = "Clip",
                .types = kNumericTypes,
                .aliases = {MayReuse(0, 0)},
                .create = CreateClip});
}

}  // namespace caesura
