// SPDX-License-Identifier: Apache-2.0
// Min, Max, Sum and Mean of any number of operands with broadcasting. A tile of the output at a
// time is accumulated in the arithmetic type over all operands, so that the output is written once
// and float16 is rounded once.
#include <vector>

#include "core/kernels/kernel_registry.h"
#include "core/ops/elementwise/binary_kernel.h"

namespace caesura {
namespace {

constexpr int64_t kVariadicTile = 1024;

struct Operands {
  Shape output;
  std::vector<BroadcastSpec<1>> plans;  // one an input, each against the output's shape
};

Result<Operands> BroadcastAll(const KernelInfo& info) {
  Operands out;
  for (int i = 0; i < info.input_count(); ++i) {
    if (!info.HasInput(i) || !info.input(i).is_tensor) return info.Invalid("expected tensors");
    if (info.InputDType(i) != info.InputDType(0)) {
      return info.Invalid(std::string("expected operands of one type, got ") +
                          DTypeName(info.InputDType(0)) + " and " + DTypeName(info.InputDType(i)));
    }
    Result<Shape> wider =
        BroadcastShape(i == 0 ? info.InputShape(0) : out.output, info.InputShape(i));
    if (!wider.ok()) return info.Invalid(wider.status().message());
    out.output = *std::move(wider);
  }
  if (info.input_count() == 0) return info.Invalid("expected at least one operand");
  for (int i = 0; i < info.input_count(); ++i) {
    auto plan = MakeBroadcastPlan<1>(out.output, {&info.InputShape(i)});
    if (!plan.ok()) return plan.status().WithPrefix(info.node().Label() + " ");
    out.plans.push_back(*std::move(plan));
  }
  return out;
}

// tile[j] = combine(tile[j], x[first + j]) for output elements [first, last).
template <typename T, typename A, typename Combine>
void AccumulateTile(const BroadcastSpec<1>& plan, const T* x, int64_t first, int64_t last, A* tile,
                    Combine combine) {
  ForEachRun(plan, first, last, [&](const auto& offsets, int64_t at, int64_t length) {
    A* run = tile + (at - first);
    BinaryRun(run, true, x + offsets[0], plan.Moves(0), run, length,
              [combine](A a, const T& b) { return combine(a, static_cast<A>(Widen(b))); });
  });
}

template <typename T, typename A>
void StoreTile(const A* tile, int64_t count, bool mean, A scale, T* y) {
#pragma omp simd
  for (int64_t j = 0; j < count; ++j) y[j] = Narrow<T>(mean ? tile[j] / scale : tile[j]);
}

template <typename T, typename Combine>
void SetVariadicCompute(KernelInfo& info, Operands operands, Combine combine, bool mean) {
  using A = Accumulator<T>;
  const int64_t count = operands.output.elements();
  const A scale = mean ? static_cast<A>(operands.plans.size()) : A{1};
  info.SetOutput(0, kDTypeOf<T>, operands.output);
  info.SetCompute([plans = std::move(operands.plans), threads = info.threads(), count, combine,
                   mean, scale](KernelContext& context) {
    T* y = context.Output<T>(0);
    ParallelFor(threads, count, kParallelGrain, [&](int64_t part_first, int64_t part_last) {
      A tile[kVariadicTile] = {};
      for (int64_t first = part_first; first < part_last; first += kVariadicTile) {
        const int64_t last = std::min(first + kVariadicTile, part_last);
        AccumulateTile(plans[0], context.Input<T>(0), first, last, tile, [](A, A b) { return b; });
        for (size_t i = 1; i < plans.size(); ++i) {
          AccumulateTile(plans[i], context.Input<T>(static_cast<int>(i)), first, last, tile,
                         combine);
        }
        StoreTile(tile, last - first, mean, scale, y + first);
      }
    });
  });
}

template <auto combine, bool mean = false>
Status CreateVariadic(KernelInfo& info) {
  ASSIGN_OR_RETURN(Operands operands, BroadcastAll(info));
  auto set = [&](auto tag) {
    SetVariadicCompute<typename decltype(tag)::type>(info, std::move(operands), combine, mean);
  };
  return DispatchNumeric(info.InputDType(0), set) ? Status()
                                                  : info.Refuse("has an unexpected type");
}

// A NaN on either side is the result, as in NumPy.
template <typename T>
T Greater(T a, T b) {
  return a > b || a != a ? a : b;
}
template <typename T>
T Lesser(T a, T b) {
  return a < b || a != a ? a : b;
}

}  // namespace

void RegisterVariadic(KernelRegistry& registry) {
  auto add = [&](const char* op_type, DTypeSet types, KernelFactory create) {
    registry.Add(
        {.op_type = op_type, .types = types, .aliases = {MayReuse(0, 0)}, .create = create});
  };
  constexpr auto kAdd = [](auto a, auto b) { return a + b; };
  add("Max", kNumericTypes, CreateVariadic<[](auto a, auto b) { return Greater(a, b); }>);
  add("Min", kNumericTypes, CreateVariadic<[](auto a, auto b) { return Lesser(a, b); }>);
  add("Sum", kFloatTypes, CreateVariadic<kAdd>);
  add("Mean", kFloatTypes, CreateVariadic<kAdd, true>);
}

}  // namespace caesura
