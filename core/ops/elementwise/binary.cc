// SPDX-License-Identifier: Apache-2.0
// Arithmetic of two operands with broadcasting: Add, Sub, Mul, Div, PRelu. Pow and Mod are in
// pow_mod.cc, the ops of any number of operands in variadic.cc, comparisons and
// bits in logic.cc.
#include "core/kernels/kernel_registry.h"
#include "core/ops/elementwise/binary_kernel.h"

namespace caesura {

namespace {

// Integers are divided towards zero; the lowest integer divided by -1 wraps to itself.
Status CreateDiv(KernelInfo& info) {
  if (!IsInteger(info.InputDType(0)))
    return CreateFloatPair<[](auto a, auto b) { return a / b; }>(info);
  ASSIGN_OR_RETURN(const BinaryShape shape, BroadcastSameType(info));
  DispatchInteger(info.InputDType(0), [&](auto tag) {
    using T = typename decltype(tag)::type;
    SetDivisionCompute<T>(
        info, shape, [](T a, T b) { return a / b; }, [](T a) { return 0 - Wrapping(a); });
  });
  return {};
}

// y = x < 0 ? slope * x : x; the slope broadcasts to x, not x to the slope.
Status CreatePRelu(KernelInfo& info) {
  ASSIGN_OR_RETURN(const BinaryShape shape, BroadcastSameType(info));
  if (shape.output != info.InputShape(0)) {
    return info.Invalid("slope " + info.InputShape(1).ToString() + " does not broadcast to X " +
                        info.InputShape(0).ToString());
  }
  return CreateNumericPair<[](auto x, auto slope) {
    using T = decltype(x);
    return x < 0 ? static_cast<T>(Wrapping(x) * Wrapping(slope)) : x;
  }>(info);
}

constexpr DTypeSet kPReluTypes =
    kFloatTypes | DTypeSet{DType::kInt32, DType::kInt64, DType::kUInt32, DType::kUInt64};

struct BinaryRow {
  const char* op_type;
  DTypeSet types;
  KernelFactory create;
};

template <auto fn>
Status CreateArithmetic(KernelInfo& info) {
  return IsInteger(info.InputDType(0)) ? CreateWrappingPair<fn>(info) : CreateFloatPair<fn>(info);
}

constexpr BinaryRow kBinaryRows[] = {
    {"Add", kNumericTypes,
     CreateArithmetic<[](auto a, auto b) { return Wrapping(a) + Wrapping(b); }>},
    {"Sub", kNumericTypes,
     CreateArithmetic<[](auto a, auto b) { return Wrapping(a) - Wrapping(b); }>},
    {"Mul", kNumericTypes,
     CreateArithmetic<[](auto a, auto b) { return Wrapping(a) * Wrapping(b); }>},
    {"Div", kNumericTypes, CreateDiv},
    {"PRelu", kPReluTypes, CreatePRelu},
};

}  // namespace

void RegisterBinary(KernelRegistry& registry) {
  for (const BinaryRow& row : kBinaryRows) {
    registry.Add({.op_type = row.op_type,
                  .types = row.types,
                  .aliases = {MayReuse(0, 0), MayReuse(1, 0)},
                  .create = row.create});
  }
}

}  // namespace caesura
