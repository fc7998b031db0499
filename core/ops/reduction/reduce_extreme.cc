// SPDX-License-Identifier: Apache-2.0
// ReduceMax, ReduceMin (NaN wins, as in NumPy) and ReduceLogSumExp, which needs the maximum first.
#include <cmath>

#include "core/base/status_macros.h"
#include "core/kernels/kernel_registry.h"
#include "core/ops/reduction/reduction_engine.h"

namespace caesura {
namespace {

// The value that loses against every other: what an empty set gives.
template <typename Limits, bool kLargest>
auto Extreme() {
  if constexpr (Limits::has_infinity) {
    return kLargest ? Limits::infinity() : -Limits::infinity();
  } else {
    return kLargest ? Limits::max() : Limits::lowest();
  }
}

template <typename T, bool kMax>
struct ExtremeOp {
  using Lane = Accumulator<T>;
  using Total = Lane;
  static constexpr bool kShifted = false;
  static constexpr int64_t kLanes =
      64;  // more than gcc unrolls: it does not vectorise these comparisons once unrolled
  static Lane Start() { return Extreme<std::numeric_limits<Lane>, !kMax>(); }
  static Total StartTotal() { return Start(); }
  static Lane Merge(Lane a, Lane b) {
    if constexpr (std::is_floating_point_v<Lane>) {
      return (kMax ? b > a : b < a) | (b != b) ? b : a;
    } else {
      return (kMax ? b > a : b < a) ? b : a;
    }
  }
  static Lane Step(Lane acc, T x, Lane) { return Merge(acc, static_cast<Lane>(x)); }
  static T Finish(Total total, int64_t, Lane) { return static_cast<T>(total); }
};

template <typename T>
using MaxOp = ExtremeOp<T, true>;
template <typename T>
using MinOp = ExtremeOp<T, false>;

template <template <typename> class Op>
Status CreateExtreme(KernelInfo& info) {
  return CreateReduction<Op, float, double, Float16, BFloat16, int32_t, int64_t, uint32_t, uint64_t,
                         int8_t, uint8_t, int16_t, uint16_t, bool>(info);
}

// log(sum(exp(x - shift))) + shift
template <typename T>
struct ExpSumOp {
  using Lane = Accumulator<T>;
  using Total = double;
  static constexpr bool kShifted = true;
  static constexpr int64_t kLanes = 16;
  static Lane Start() { return 0; }
  static Total StartTotal() { return 0; }
  static Lane Step(Lane acc, T x, Lane shift) {
    return acc + std::exp(static_cast<Lane>(x) - shift);
  }
  static Total Merge(Total a, Total b) { return a + b; }
  static T Finish(Total total, int64_t, Lane shift) {
    return static_cast<T>(std::log(total) + static_cast<double>(shift));
  }
};

template <typename T>
Status SetLogSumExp(KernelInfo& info) {
  using Lane = Accumulator<T>;
  using MaxEngine = ReductionEngine<MaxOp<T>, T>;
  using SumEngine = ReductionEngine<ExpSumOp<T>, T>;
  const Shape& shape = info.InputShape(0);
  ASSIGN_OR_RETURN(const std::vector<bool> reduced, ReducedAxes(info, shape));
  info.SetOutput(0, info.InputDType(0),
                 ReducedShape(shape, reduced, info.Attr<int64_t>("keepdims", 1) != 0));
  const ReductionSpec plan = MakeReductionPlan(shape, reduced);
  const size_t maxima = info.BookScratch(plan.outputs * sizeof(T)),
               shifts = info.BookScratch(plan.outputs * sizeof(Lane));
  const size_t partials = info.BookScratch(SumEngine::PartialCount(plan) * sizeof(double));
  info.SetCompute([plan, maxima, shifts, partials,
                   threads = info.threads()](KernelContext& context) {
    const T* x = context.Input<T>(0);
    T* max = context.Scratch<T>(maxima);
    Lane* shift = context.Scratch<Lane>(shifts);
    MaxEngine(plan, x, max, context.Scratch<Lane>(partials), nullptr).Run(threads);
    for (int64_t i = 0; i < plan.outputs; ++i) {
      const Lane value = static_cast<Lane>(max[i]);
      shift[i] =
          std::isfinite(value) ? value : Lane(0);  // an infinite maximum is the result as it is
    }
    SumEngine(plan, x, context.Output<T>(0), context.Scratch<double>(partials), shift).Run(threads);
  });
  return {};
}

Status CreateLogSumExp(KernelInfo& info) {
  Status status = info.Refuse(std::string("does not reduce ") + DTypeName(info.InputDType(0)));
  DispatchFloat(info.InputDType(0),
                [&](auto tag) { status = SetLogSumExp<typename decltype(tag)::type>(info); });
  return status;
}

}  // namespace

void RegisterReduceExtreme(KernelRegistry& registry) {
  const DTypeSet types = kNumericTypes | DTypeSet{DType::kBool};
  registry.Add(
      {.op_type = "ReduceMax", .types = types, .host_inputs = {1}, .create = CreateExtreme<MaxOp>});
  registry.Add(
      {.op_type = "ReduceMin", .types = types, .host_inputs = {1}, .create = CreateExtreme<MinOp>});
  registry.Add({.op_type = "ReduceLogSumExp",
                .types = kFloatTypes,
                .host_inputs = {1},
                .create = CreateLogSumExp});
}

}  // namespace caesura
