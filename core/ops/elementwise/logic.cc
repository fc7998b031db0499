// SPDX-License-Identifier: Apache-2.0
// Comparisons, logic of bools, bits of integers, and Where.
#include "core/kernels/kernel_registry.h"
#include "core/ops/elementwise/binary_kernel.h"

namespace caesura {
namespace {

// Comparisons give bools, so they never run in place: equal byte counts do not mean equal element
// counts here.
// `swapped`: fn(b, a), so that a > b shares the loops of b < a.
template <auto fn>
Status CreateComparison(KernelInfo& info, bool swapped) {
  ASSIGN_OR_RETURN(BinaryShape shape, BroadcastSameType(info));
  if (swapped) std::swap(shape.plan.strides[0], shape.plan.strides[1]);
  auto set = [&](auto tag) {
    using T = typename decltype(tag)::type;
    info.SetOutput(0, DType::kBool, shape.output);
    info.SetCompute([plan = shape.plan, threads = info.threads(), swapped](KernelContext& context) {
      RunBinary(plan, threads, context.Input<T>(swapped ? 1 : 0), context.Input<T>(swapped ? 0 : 1),
                context.Output<bool>(0), fn);
    });
  };
  return DispatchNumeric(info.InputDType(0), set) ? Status()
                                                  : info.Refuse("has an unexpected type");
}
constexpr auto kLess = [](auto a, auto b) { return a < b; };
constexpr auto kLessOrEqual = [](auto a, auto b) { return a <= b; };

Status CreateEqual(KernelInfo& info) {
  ASSIGN_OR_RETURN(const BinaryShape shape, BroadcastSameType(info));
  auto set = [&](auto tag) {
    using T = typename decltype(tag)::type;
    SetBinaryCompute<T, T, bool>(info, shape, [](const auto& a, const auto& b) { return a == b; });
  };
  auto set_integer = [&](auto tag) {  // signed or not: the same bits are equal
    set(TypeTag<std::make_unsigned_t<typename decltype(tag)::type>>{});
  };
  const DType dtype = info.InputDType(0);
  if (DispatchFloat(dtype, set) || DispatchInteger(dtype, set_integer) ||
      DispatchDType<bool, std::string>(dtype, set))
    return {};
  return info.Refuse("has an unexpected type");
}

template <auto fn>
Status CreateBoolPair(KernelInfo& info) {
  ASSIGN_OR_RETURN(const BinaryShape shape, BroadcastSameType(info));
  SetBinaryCompute<bool, bool, bool>(info, shape, fn);
  return {};
}

// Shifting by a negative amount or by all bits and more leaves what sign extension alone gives.
template <typename T>
T ShiftedRight(T x, T amount) {
  constexpr int kBits = 8 * sizeof(T);
  const bool beyond = amount < 0 || amount >= static_cast<T>(kBits);
  return static_cast<T>(x >> (beyond ? kBits - 1 : static_cast<int>(amount)) >>
                        (beyond && x >= 0 ? 1 : 0));
}
template <typename T>
T ShiftedLeft(T x, T amount) {
  constexpr int kBits = 8 * sizeof(T);
  if (amount < 0 || amount >= static_cast<T>(kBits)) return 0;
  return static_cast<T>(Wrapping(x) << static_cast<int>(amount));
}

Status CreateBitShift(KernelInfo& info) {
  const std::string direction = info.Attr<std::string>("direction", "");
  if (direction == "RIGHT")
    return CreateIntegerPair<[](auto x, auto n) { return ShiftedRight(x, n); }>(info);
  if (direction == "LEFT")
    return CreateIntegerPair<[](auto x, auto n) { return ShiftedLeft(x, n); }>(info);
  return info.Invalid("direction: expected LEFT or RIGHT, got '" + direction + "'");
}

// --- Where ---

// y[i] = condition[i] ? a[i] : b[i] over a run on which the condition moves. The condition is read
// as bytes and both values always: so it becomes a select of vectors, not a branch.
template <bool kAMoves, bool kBMoves, typename T>
void SelectRun(const uint8_t* condition, const T* a, const T* b, T* y, int64_t n) {
#pragma omp simd
  for (int64_t i = 0; i < n; ++i) {
    const T left = a[kAMoves ? i : 0], right = b[kBMoves ? i : 0];
    y[i] = condition[i] != 0 ? left : right;
  }
}

template <typename T>
void CopyRun(const T* x, bool moves, T* y, int64_t n) {
  if (!moves) {
    std::fill_n(y, n, *x);
  } else if (x != y) {
    std::copy_n(x, n, y);
  }
}

template <typename T>
void WhereRun(const BroadcastSpec<3>& plan, const uint8_t* condition, const T* a, const T* b, T* y,
              int64_t n) {
  if (!plan.Moves(0)) {
    *condition != 0 ? CopyRun(a, plan.Moves(1), y, n) : CopyRun(b, plan.Moves(2), y, n);
  } else if (plan.Moves(1)) {
    plan.Moves(2) ? SelectRun<true, true>(condition, a, b, y, n)
                  : SelectRun<true, false>(condition, a, b, y, n);
  } else {
    plan.Moves(2) ? SelectRun<false, true>(condition, a, b, y, n)
                  : SelectRun<false, false>(condition, a, b, y, n);
  }
}

Result<Shape> WhereShape(const KernelInfo& info) {
  for (int i = 0; i < 3; ++i) {
    if (!info.HasInput(i) || !info.input(i).is_tensor)
      return info.Invalid("expected three tensors");
  }
  if (info.InputDType(0) != DType::kBool) {
    return info.Invalid(std::string("condition: expected bool, got ") +
                        DTypeName(info.InputDType(0)));
  }
  if (info.InputDType(1) != info.InputDType(2)) {
    return info.Invalid(std::string("expected values of one type, got ") +
                        DTypeName(info.InputDType(1)) + " and " + DTypeName(info.InputDType(2)));
  }
  Result<Shape> values = BroadcastShape(info.InputShape(1), info.InputShape(2));
  if (!values.ok()) return info.Invalid(values.status().message());
  Result<Shape> output = BroadcastShape(info.InputShape(0), *values);
  if (!output.ok()) return info.Invalid(output.status().message());
  return output;
}

Status CreateWhere(KernelInfo& info) {
  ASSIGN_OR_RETURN(const Shape output, WhereShape(info));
  auto planned =
      MakeBroadcastPlan<3>(output, {&info.InputShape(0), &info.InputShape(1), &info.InputShape(2)});
  if (!planned.ok()) return planned.status().WithPrefix(info.node().Label() + " ");
  info.SetOutput(0, info.InputDType(1), output);
  DispatchStorage(info.InputDType(1), [&](auto tag) {
    using T = typename decltype(tag)::type;
    info.SetCompute([plan = *planned, threads = info.threads()](KernelContext& context) {
      const uint8_t* condition = context.Input<uint8_t>(0);
      const T* a = context.Input<T>(1);
      const T* b = context.Input<T>(2);
      T* y = context.Output<T>(0);
      ParallelFor(threads, plan.elements, kParallelGrain, [&](int64_t first, int64_t last) {
        ForEachRun(plan, first, last, [&](const auto& offsets, int64_t at, int64_t length) {
          WhereRun(plan, condition + offsets[0], a + offsets[1], b + offsets[2], y + at, length);
        });
      });
    });
  });
  return {};
}

struct LogicRow {
  const char* op_type;
  DTypeSet types;
  KernelFactory create;
};

// Into bools: never in place.
constexpr LogicRow kComparisons[] = {
    {"Equal", kNumericTypes | DTypeSet{DType::kBool, DType::kString}, CreateEqual},
    {"Less", kNumericTypes, [](KernelInfo& info) { return CreateComparison<kLess>(info, false); }},
    {"LessOrEqual", kNumericTypes,
     [](KernelInfo& info) { return CreateComparison<kLessOrEqual>(info, false); }},
    {"Greater", kNumericTypes,
     [](KernelInfo& info) { return CreateComparison<kLess>(info, true); }},
    {"GreaterOrEqual", kNumericTypes,
     [](KernelInfo& info) { return CreateComparison<kLessOrEqual>(info, true); }},
};

// From a type to itself.
constexpr LogicRow kLogic[] = {
    {"And", {DType::kBool}, CreateBoolPair<[](bool a, bool b) { return a && b; }>},
    {"Or", {DType::kBool}, CreateBoolPair<[](bool a, bool b) { return a || b; }>},
    {"Xor", {DType::kBool}, CreateBoolPair<[](bool a, bool b) { return a != b; }>},
    {"BitwiseAnd", kIntegerTypes, CreateWrappingPair<[](auto a, auto b) { return a & b; }>},
    {"BitwiseOr", kIntegerTypes, CreateWrappingPair<[](auto a, auto b) { return a | b; }>},
    {"BitwiseXor", kIntegerTypes, CreateWrappingPair<[](auto a, auto b) { return a ^ b; }>},
    {"BitShift", kIntegerTypes, CreateBitShift},
};

}  // namespace

void RegisterLogic(KernelRegistry& registry) {
  for (const LogicRow& row : kComparisons) {
    registry.Add({.op_type = row.op_type, .types = row.types, .create = row.create});
  }
  for (const LogicRow& row : kLogic) {
    registry.Add({.op_type = row.op_type,
                  .types = row.types,
                  .aliases = {MayReuse(0, 0), MayReuse(1, 0)},
                  .create = row.create});
  }
  registry.Add({.op_type = "Where",
                .typed_input = 1,
                .aliases = {MayReuse(1, 0), MayReuse(2, 0)},
                .create = CreateWhere});
}

}  // namespace caesura
