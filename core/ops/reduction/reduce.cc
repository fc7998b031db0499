// SPDX-License-Identifier: Apache-2.0
// The Reduce ops that add or multiply. Integers wrap around, as in NumPy.
#include <cmath>

#include "core/ops/reduction/reduction_engine.h"
#include "core/kernels/kernel_registry.h"
#include "core/kernels/simd/convert.h"
#include "core/kernels/kernel.h"

namespace caesura {
namespace {

// Accumulators: integers in 64 bits without a sign (exact modulo the width of T); floats in float
// within a stretch and in double across stretches.
template <typename T>
using LaneOf = std::conditional_t<std::is_integral_v<T>, uint64_t, Accumulator<T>>;
template <typename T>
using TotalOf = std::conditional_t<std::is_integral_v<T>, uint64_t, double>;

template <typename T>
struct AddingOp {
  using Lane = LaneOf<T>;
  using Total = TotalOf<T>;
  static constexpr bool kShifted = false;
  static constexpr int64_t kLanes = 16;
  static Lane Start() { return 0; }
  static Total StartTotal() { return 0; }
  static Total Merge(Total a, Total b) { return a + b; }
  static T Finish(Total total, int64_t, Lane) { return static_cast<T>(total); }
};

template <typename T>
struct SumOp : AddingOp<T> {
  using Lane = LaneOf<T>;
  static Lane Step(Lane acc, T x, Lane) { return acc + static_cast<Lane>(x); }
};

template <typename T>
struct MeanOp : SumOp<T> {
  static T Finish(TotalOf<T> total, int64_t count, LaneOf<T>) {
    if constexpr (std::is_signed_v<T> && std::is_integral_v<T>) {
      return count == 0 ? T(0) : static_cast<T>(static_cast<int64_t>(total) / count);
    } else if constexpr (std::is_integral_v<T>) {
      return count == 0 ? T(0) : static_cast<T>(total / static_cast<uint64_t>(count));
    } else {
      return static_cast<T>(total / static_cast<double>(count));  // NaN for an empty set
    }
  }
};

template <typename T>
struct SumSquareOp : AddingOp<T> {
  using Lane = LaneOf<T>;
  static Lane Step(Lane acc, T x, Lane) {
    return acc + static_cast<Lane>(x) * static_cast<Lane>(x);
  }
};

template <typename T>
struct L1Op : AddingOp<T> {
  using Lane = LaneOf<T>;
  static Lane Step(Lane acc, T x, Lane) {
    const Lane value = static_cast<Lane>(x);
    if constexpr (std::is_unsigned_v<T>) {
      return acc + value;
    } else if constexpr (std::is_integral_v<T>) {
      return x < 0 ? acc - value : acc + value;
    } else {
      return acc + std::abs(value);
    }
  }
};

template <typename T>
struct L2Op : SumSquareOp<T> {
  static T Finish(TotalOf<T> total, int64_t, LaneOf<T>) {
    return ConvertElement<T>(std::sqrt(static_cast<double>(total)));
  }
};

template <typename T>
struct LogSumOp : SumOp<T> {
  static T Finish(double total, int64_t, LaneOf<T>) { return static_cast<T>(std::log(total)); }
};

template <typename T>
struct ProdOp {
  using Lane = LaneOf<T>;
  using Total = TotalOf<T>;
  static constexpr bool kShifted = false;
  static constexpr int64_t kLanes = 16;
  static Lane Start() { return 1; }
  static Total StartTotal() { return 1; }
  static Lane Step(Lane acc, T x, Lane) { return acc * static_cast<Lane>(x); }
  static Total Merge(Total a, Total b) { return a * b; }
  static T Finish(Total total, int64_t, Lane) { return static_cast<T>(total); }
};

template <template <typename> class Op>
Status CreateReduceKernel(KernelInfo& info) {
  return CreateReduction<Op, float, double, Float16, BFloat16, int32_t, int64_t, uint32_t,
                         uint64_t>(info);
}

Status CreateLogSum(KernelInfo& info) {
  return CreateReduction<LogSumOp, float, double, Float16, BFloat16>(info);
}

}  // namespace

void RegisterReduce(KernelRegistry& registry) {
  const DTypeSet types =
      kFloatTypes | DTypeSet{DType::kInt32, DType::kInt64, DType::kUInt32, DType::kUInt64};
  registry.Add({.op_type = "ReduceSum",
                .types = types,
                .host_inputs = {1},
                .create = CreateReduceKernel<SumOp>});
  registry.Add({.op_type = "ReduceMean",
                .types = types,
                .host_inputs = {1},
                .create = CreateReduceKernel<MeanOp>});
  registry.Add({.op_type = "ReduceProd",
                .types = types,
                .host_inputs = {1},
                .create = CreateReduceKernel<ProdOp>});
  registry.Add({.op_type = "ReduceL1",
                .types = types,
                .host_inputs = {1},
                .create = CreateReduceKernel<L1Op>});
  registry.Add({.op_type = "ReduceL2",
                .types = types,
                .host_inputs = {1},
                .create = CreateReduceKernel<L2Op>});
  registry.Add({.op_type = "ReduceSumSquare",
                .types = types,
                .host_inputs = {1},
                .create = CreateReduceKernel<SumSquareOp>});
  registry.Add({.op_type = "ReduceLogSum",
                .types = kFloatTypes,
                .host_inputs = {1},
                .create = CreateLogSum});
}

}  // namespace caesura
