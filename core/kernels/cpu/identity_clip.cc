// SPDX-License-Identifier: Apache-2.0
// Identity (tensors of any type, sequences, optionals), Detach, Check, and Clip.
#include <algorithm>
#include <limits>
#include <string>

#include "core/base/status_macros.h"
#include "core/kernels/cpu/kernel_list.h"
#include "core/kernels/cpu/unary_kernel.h"

namespace caesura {
namespace {

// A sequence shares its elements; a tensor that came as an optional is copied, as its bytes end
// with the step.
Status PassValueOn(KernelContext& context) {
  RuntimeValue value = context.InputValue(0);
  if (value.is_tensor()) {
    ASSIGN_OR_RETURN(Tensor copy, value.tensor().Clone());
    value = RuntimeValue(std::move(copy));
  }
  context.SetOutputValue(0, std::move(value));
  return {};
}

Status CreateIdentity(KernelInfo& info) {
  if (!info.HasInput(0) || !info.input(0).is_tensor) {
    info.SetOutputSizedInCompute(0);
    info.SetCompute(PassValueOn);
    return {};
  }
  const DType dtype = info.InputDType(0);
  const int64_t count = info.InputShape(0).elements();
  info.SetOutput(0, dtype, info.InputShape(0));
  info.SetCompute([dtype, count](KernelContext& context) {
    const void* x = context.Input<void>(0);
    void* y = context.Output<void>(0);
    if (x != y) CopyElements(dtype, x, y, count);
  });
  return {};
}

Status CreateCheck(KernelInfo& info) {
  if (info.InputDType(1) != DType::kBool) return info.Invalid("what is to hold must be bool");
  const DType dtype = info.InputDType(0);
  const int64_t count = info.InputShape(0).elements(), conditions = info.InputShape(1).elements();
  info.SetOutput(0, dtype, info.InputShape(0));
  info.SetCompute([=, message = info.Attr<std::string>("message", "a check failed")](
                      KernelContext& context) -> Status {
    const bool* holds = context.Input<bool>(1);
    if (!std::all_of(holds, holds + conditions, [](bool holds) { return holds; }))
      return InvalidArgument(message);
    const void* x = context.Input<void>(0);
    void* y = context.Output<void>(0);
    if (x != y) CopyElements(dtype, x, y, count);
    return {};
  });
  return {};
}

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

void RegisterIdentityKernels(KernelRegistry& registry) {
  registry.Add({.op_type = "Identity", .aliases = {View(0, 0)}, .create = CreateIdentity});
  registry.Add({.op_type = "Detach",
                .domain = kCaesuraDomain,
                .aliases = {View(0, 0)},
                .create = CreateIdentity});
  registry.Add({.op_type = "Check",
                .domain = kCaesuraDomain,
                .aliases = {MayReuse(0, 0)},
                .create = CreateCheck});
  registry.Add({.op_type = "Clip",
                .types = kNumericTypes,
                .aliases = {MayReuse(0, 0)},
                .create = CreateClip});
}

}  // namespace caesura
