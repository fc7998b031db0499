// SPDX-License-Identifier: Apache-2.0
// The driver of binary elementwise kernels with broadcasting: the twin of unary_kernel.h.
//
//   {"Add", kNumericTypes, CreateNumericPair<[](auto a, auto b) { return WrappingAdd(a, b); }>}
//
// The function gets both operands in the arithmetic type (float for float16 and bfloat16).
#ifndef CAESURA_CORE_OPS_ELEMENTWISE_BINARY_KERNEL_H_
#define CAESURA_CORE_OPS_ELEMENTWISE_BINARY_KERNEL_H_

#include <string>
#include <type_traits>

#include "core/base/status_macros.h"
#include "core/kernels/walks/broadcast.h"
#include "core/kernels/simd/arithmetic_type.h"
#include "core/kernels/simd/best_isa.h"
#include "core/kernels/simd/parallel.h"
#include "core/kernels/kernel.h"
#include "core/kernels/kernel_registry.h"

namespace caesura {

struct BinaryShape {
  Shape output;
  BroadcastSpec<2> plan;
};

// Inputs 0 and 1 broadcast against each other. Fails when one is missing or the shapes do not fit.
Result<BinaryShape> BroadcastInputs(const KernelInfo& info);
// As BroadcastInputs, and fails where inputs 0 and 1 differ in dtype.
Result<BinaryShape> BroadcastSameType(const KernelInfo& info);

// y = fn(a, b) over the plan, on `threads` threads. `y` may be `a` or `b` where they have its size.
// `kWide` is false for functions that call into libm, which no instruction set makes faster.
template <bool kWide = true, typename A, typename B, typename Y, typename Fn>
void RunBinary(const BroadcastSpec<2>& plan, int threads, const A* a, const B* b, Y* y,
               const Fn& fn) {
  auto op = [&fn](const A& left, const B& right) {
    return Narrow<Y>(fn(Widen(left), Widen(right)));
  };
  ParallelFor(threads, plan.elements, kParallelGrain, [&](int64_t first, int64_t last) {
    auto loop = [&] {
      ForEachRun(plan, first, last, [&](const auto& offsets, int64_t at, int64_t length) {
        BinaryRun(a + offsets[0], plan.Moves(0), b + offsets[1], plan.Moves(1), y + at, length, op);
      });
    };
    if constexpr (kWide && std::is_same_v<Accumulator<Y>, float>) {
      OnBestIsa(loop);
    } else {
      loop();
    }
  });
}

// Settles the node as y[i] = fn(a[i], b[i]) with elements A, B and Y.
template <typename A, typename B, typename Y, typename Fn>
void SetBinaryCompute(KernelInfo& info, const BinaryShape& shape, Fn fn) {
  info.SetOutput(0, kDTypeOf<Y>, shape.output);
  info.SetCompute([plan = shape.plan, threads = info.threads(), fn](KernelContext& context) {
    RunBinary(plan, threads, context.Input<A>(0), context.Input<B>(1), context.Output<Y>(0), fn);
  });
}

// Factories by group of types. The output has the inputs' type.
template <auto fn>
Status CreateIntegerPair(KernelInfo& info) {
  ASSIGN_OR_RETURN(const BinaryShape shape, BroadcastSameType(info));
  auto set = [&](auto tag) {
    using T = typename decltype(tag)::type;
    SetBinaryCompute<T, T, T>(info, shape, fn);
  };
  if (DispatchInteger(info.InputDType(0), set)) return {};
  return info.Refuse(std::string("is not implemented for ") + DTypeName(info.InputDType(0)));
}
template <auto fn>
Status CreateFloatPair(KernelInfo& info) {
  ASSIGN_OR_RETURN(const BinaryShape shape, BroadcastSameType(info));
  auto set = [&](auto tag) {
    using T = typename decltype(tag)::type;
    SetBinaryCompute<T, T, T>(info, shape, fn);
  };
  if (DispatchFloat(info.InputDType(0), set)) return {};
  return info.Refuse(std::string("is not implemented for ") + DTypeName(info.InputDType(0)));
}
// For results whose low bits depend only on the operands' low bits (+, *, &): signed and unsigned
// integers of one size share a kernel.
template <auto fn>
Status CreateWrappingPair(KernelInfo& info) {
  ASSIGN_OR_RETURN(const BinaryShape shape, BroadcastSameType(info));
  auto set = [&](auto tag) {
    using T = std::make_unsigned_t<typename decltype(tag)::type>;
    SetBinaryCompute<T, T, T>(info, shape, fn);
  };
  const DType dtype = info.InputDType(0);
  if (!DispatchInteger(dtype, set))
    return info.Refuse(std::string("is not implemented for ") + DTypeName(dtype));
  info.SetOutput(0, dtype, shape.output);
  return {};
}
template <auto fn>
Status CreateNumericPair(KernelInfo& info) {
  return IsInteger(info.InputDType(0)) ? CreateIntegerPair<fn>(info) : CreateFloatPair<fn>(info);
}

// An integer as one that wraps around instead of overflowing; other values as they are.
template <typename T>
auto Wrapping(T x) {
  if constexpr (std::is_integral_v<T>) {
    return static_cast<std::common_type_t<std::make_unsigned_t<T>, unsigned>>(x);
  } else {
    return x;
  }
}

// Settles an integer division: fn(a, b) is never called with b = 0 or b = -1. A zero anywhere in
// the divisor fails the call; `by_minus_one` stands for fn(a, -1), which may not overflow.
template <typename T, typename Fn, typename MinusOneFn>
void SetDivisionCompute(KernelInfo& info, const BinaryShape& shape, Fn fn,
                        MinusOneFn by_minus_one) {
  auto divide = [fn, by_minus_one](T a, T b) {
    if constexpr (std::is_signed_v<T>) {
      if (b == -1) return static_cast<T>(by_minus_one(a));
    }
    return static_cast<T>(fn(a, b));
  };
  const int64_t divisors = info.InputShape(1).elements();
  info.SetOutput(0, kDTypeOf<T>, shape.output);
  info.SetCompute([=, plan = shape.plan, threads = info.threads(),
                   label = info.node().Label()](KernelContext& context) {
    const T* b = context.Input<T>(1);
    if (plan.elements > 0 && std::find(b, b + divisors, T{0}) != b + divisors) {
      return InvalidArgument(label + " division of integers by zero");
    }
    RunBinary(plan, threads, context.Input<T>(0), b, context.Output<T>(0), divide);
    return Status();
  });
}

}  // namespace caesura

#endif  // CAESURA_CORE_OPS_ELEMENTWISE_BINARY_KERNEL_H_
