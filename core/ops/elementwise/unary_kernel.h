// SPDX-License-Identifier: Apache-2.0
// The driver of unary elementwise kernels. A kernel is a function of one element in the arithmetic
// type (float for float16 and bfloat16, otherwise the element type itself):
//
//   {"Exp", kFloatTypes, CreateFloatMap<[](auto x) { return std::exp(x); }>}
//
// or, where it has attributes, a struct that is built once from the node:
//
//   struct LeakyReluOp {
//     float alpha;
//     explicit LeakyReluOp(const KernelInfo& info) : alpha(info.Attr<float>("alpha", 0.01f)) {}
//     template <typename T> T operator()(T x) const { return x < 0 ? static_cast<T>(alpha) * x : x;
//     }
//   };
//   {"LeakyRelu", kFloatTypes, CreateFloatOp<LeakyReluOp>}
#ifndef CAESURA_CORE_OPS_ELEMENTWISE_UNARY_KERNEL_H_
#define CAESURA_CORE_OPS_ELEMENTWISE_UNARY_KERNEL_H_

#include <string>
#include <type_traits>

#include "core/kernels/simd/arithmetic_type.h"
#include "core/kernels/simd/best_isa.h"
#include "core/kernels/simd/parallel.h"
#include "core/kernels/kernel.h"
#include "core/kernels/kernel_registry.h"

namespace caesura {

// Elements that are worth a thread: a unary op costs up to a few dozen additions.
inline constexpr int64_t kUnaryGrain = kParallelGrain / 4;

// A stateless lambda as an op.
template <auto fn>
struct MapOp {
  explicit MapOp(const KernelInfo&) {}
  template <typename T>
  auto operator()(T x) const {
    return fn(x);
  }
};

// y[i] = op(x[i]). `y` may be `x`. Floats of up to 32 bits run as wide as the machine goes.
template <typename T, typename Y, typename Op>
void MapRow(const T* x, Y* y, int64_t n, Op op) {
  auto loop = [=] {
    const Op fn = op;  // in registers: stores to y cannot touch it
#pragma omp simd
    for (int64_t i = 0; i < n; ++i) y[i] = Narrow<Y>(fn(Widen(x[i])));
  };
  if constexpr (std::is_same_v<Accumulator<T>, float>) {
    OnBestIsa(loop);
  } else {
    loop();
  }
}

// The kernel of Op on elements T; the output's type is T, or Y where that is given.
template <typename Op, typename T, typename Y = T>
void SetUnaryCompute(KernelInfo& info) {
  const int64_t count = info.InputShape(0).elements();
  info.SetOutput(0, kDTypeOf<Y>, info.InputShape(0));
  info.SetCompute([count, threads = info.threads(), op = Op(info)](KernelContext& context) {
    const T* x = context.Input<T>(0);
    Y* y = context.Output<Y>(0);
    ParallelFor(threads, count, kUnaryGrain, [x, y, &op](int64_t first, int64_t last) {
      MapRow(x + first, y + first, last - first, op);
    });
  });
}

// "[Op 'node'] is not implemented for <dtype of input 0>": for definitions that list more types
// than the factory serves.
inline Status RefuseDType(const KernelInfo& info) {
  return info.Refuse(std::string("is not implemented for ") + DTypeName(info.InputDType(0)));
}

// Factories for float types, for integers, and for both.
template <typename Op>
Status CreateFloatOp(KernelInfo& info) {
  auto set = [&](auto tag) { SetUnaryCompute<Op, typename decltype(tag)::type>(info); };
  return DispatchFloat(info.InputDType(0), set) ? Status() : RefuseDType(info);
}
template <typename Op>
Status CreateIntegerOp(KernelInfo& info) {
  auto set = [&](auto tag) { SetUnaryCompute<Op, typename decltype(tag)::type>(info); };
  return DispatchInteger(info.InputDType(0), set) ? Status() : RefuseDType(info);
}
template <typename Op>
Status CreateNumericOp(KernelInfo& info) {
  return IsInteger(info.InputDType(0)) ? CreateIntegerOp<Op>(info) : CreateFloatOp<Op>(info);
}
template <auto fn>
Status CreateFloatMap(KernelInfo& info) {
  return CreateFloatOp<MapOp<fn>>(info);
}
template <auto fn>
Status CreateIntegerMap(KernelInfo& info) {
  return CreateIntegerOp<MapOp<fn>>(info);
}
template <auto fn>
Status CreateNumericMap(KernelInfo& info) {
  return CreateNumericOp<MapOp<fn>>(info);
}

struct UnaryRow {
  const char* op_type;
  DTypeSet types;
  KernelFactory create;
  const char* domain = "";
};

// Registers a table of unary kernels whose output has the input's type; all may run in place.
template <size_t N>
void RegisterUnaryRows(KernelRegistry& registry, const UnaryRow (&rows)[N]) {
  for (const UnaryRow& row : rows) {
    registry.Add({.op_type = row.op_type,
                  .domain = row.domain,
                  .types = row.types,
                  .aliases = {MayReuse(0, 0)},
                  .create = row.create});
  }
}

}  // namespace caesura

#endif  // CAESURA_CORE_OPS_ELEMENTWISE_UNARY_KERNEL_H_
