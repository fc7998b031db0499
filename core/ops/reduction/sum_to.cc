// SPDX-License-Identifier: Apache-2.0
// SumTo: the gradient of broadcasting. The walk of a broadcast is taken backwards: where an operand
// stood still, the elements of dY are added up.
#include "core/base/status_macros.h"
#include "core/kernels/walks/broadcast.h"
#include "core/kernels/kernel_registry.h"
#include "core/kernels/simd/arithmetic_type.h"
#include "core/kernels/simd/best_isa.h"
#include "core/kernels/simd/parallel.h"
#include "core/kernels/simd/row_math.h"
#include "core/kernels/kernel.h"
#include "core/kernels/factory_checks.h"

namespace caesura {
namespace {

// Operand 0 is dY, operand 1 is dX; narrowed to a part of one dim, it no longer covers all elements
// of dY.
using SumPlan = BroadcastSpec<2>;

// Sums are carried in double: dY may be long (a batch of sequences) and dX is small then.
template <typename T>
double SumOfRun(const T* x, int64_t n) {
  return LaneSum<double>(n, [x](int64_t i) { return static_cast<double>(Widen(x[i])); });
}

template <typename T>
void AddRuns(const SumPlan& plan, const T* dy, double* sums, int64_t first, int64_t last) {
  ForEachRun(plan, first, last, [&](const auto& offsets, int64_t, int64_t length) {
    const T* run = dy + offsets[0];
    double* to = sums + offsets[1];
    if (!plan.Moves(1)) {
      *to += SumOfRun(run, length);
    } else {
#pragma omp simd
      for (int64_t i = 0; i < length; ++i) to[i] += Widen(run[i]);
    }
  });
}

// The dim along which threads split the work: the longest one that dX keeps, so that each sum
// belongs to one thread; -1 when dX keeps none.
int SplitDim(const SumPlan& plan) {
  int best = -1;
  for (int d = 0; d < plan.rank; ++d) {
    if (plan.strides[1][d] != 0 && (best < 0 || plan.dims[d] > plan.dims[best])) best = d;
  }
  return best;
}

// The part [first, last) of dim `d`, with the offsets of its start in `offsets`.
SumPlan Narrowed(SumPlan plan, int d, int64_t first, int64_t last,
                 std::array<int64_t, 2>* offsets) {
  for (int n = 0; n < 2; ++n) (*offsets)[n] = first * plan.strides[n][d];
  plan.elements = plan.elements / plan.dims[d] * (last - first);
  plan.dims[d] = last - first;
  return plan;
}

// Everything into one number: each thread sums a part of its own, the parts are added in order.
template <typename T>
double SumOfAll(const T* dy, int64_t count, int threads) {
  constexpr int kMostParts = 64;
  const int64_t parts =
      std::clamp<int64_t>(count / kParallelGrain, 1, std::min(threads, kMostParts));
  double sums[kMostParts] = {};
  ParallelFor(threads, parts, 1, [&](int64_t first, int64_t last) {
    for (int64_t p = first; p < last; ++p) {
      const int64_t from = count * p / parts, to = count * (p + 1) / parts;
      OnBestIsa([&] { sums[p] = SumOfRun(dy + from, to - from); });
    }
  });
  double sum = 0;
  for (int64_t p = 0; p < parts; ++p) sum += sums[p];
  return sum;
}

template <typename T>
void SumInto(const SumPlan& plan, int threads, const T* dy, double* sums, int64_t outputs) {
  std::fill_n(sums, outputs, 0.0);
  if (plan.elements == 0) return;
  const int split = SplitDim(plan);
  if (split < 0 || outputs == 1) {
    *sums = SumOfAll(dy, plan.elements, threads);
    return;
  }
  const int64_t dim = plan.dims[split];
  const int64_t grain = std::max<int64_t>(1, kParallelGrain * dim / plan.elements);
  ParallelFor(threads, dim, grain, [&](int64_t first, int64_t last) {
    std::array<int64_t, 2> offsets;
    const SumPlan part = Narrowed(plan, split, first, last, &offsets);
    OnBestIsa([&] { AddRuns(part, dy + offsets[0], sums + offsets[1], 0, part.elements); });
  });
}

template <typename T, typename Y>
void SetSumToCompute(KernelInfo& info, const SumPlan& plan, const Shape& shape) {
  const int64_t outputs = shape.elements();
  info.SetOutput(0, kDTypeOf<Y>, shape);
  const size_t scratch = info.BookScratch(static_cast<size_t>(outputs) * sizeof(double));
  info.SetCompute([plan, outputs, scratch, threads = info.threads()](KernelContext& context) {
    double* sums = context.Scratch<double>(scratch);
    SumInto(plan, threads, context.Input<T>(0), sums, outputs);
    Y* dx = context.Output<Y>(0);
    for (int64_t i = 0; i < outputs; ++i) dx[i] = Narrow<Y>(static_cast<Accumulator<Y>>(sums[i]));
  });
}

Result<Shape> SumShape(const KernelInfo& info) {
  if (info.InputValue(1) == nullptr) return info.Invalid("shape: expected a value");
  return CheckDims(info, info.HostInts(1), info.InputDType(0));
}

// True if halves are summed into float32.
bool Widens(const KernelInfo& info) {
  const DType dtype = info.InputDType(0);
  return info.Attr<int64_t>("dtype", static_cast<int64_t>(dtype)) != static_cast<int64_t>(dtype);
}

// Nothing was expanded, but for dims of 1: a view.
Status CreateSumToView(KernelInfo& info) {
  ASSIGN_OR_RETURN(const Shape shape, SumShape(info));
  const Shape& from = info.InputShape(0);
  int64_t ignored[64];
  const bool fits = from.rank() <= 64 && BroadcastStrides(shape, from, ignored);
  if (!fits || shape.elements() != from.elements() || Widens(info))
    return info.Refuse("is no view: axes were expanded, or it widens");
  const DType dtype = info.InputDType(0);
  info.SetOutput(0, dtype, shape);
  info.SetCompute([dtype, count = shape.elements()](KernelContext& context) {
    if (context.Output<void>(0) != context.Input<void>(0)) {
      CopyElements(dtype, context.Input<void>(0), context.Output<void>(0), count);
    }
  });
  return {};
}

Status CreateSumTo(KernelInfo& info) {
  ASSIGN_OR_RETURN(const Shape shape, SumShape(info));
  const auto plan = MakeBroadcastPlan<2>(info.InputShape(0), {&info.InputShape(0), &shape});
  if (!plan.ok()) return plan.status().WithPrefix(info.node().Label() + " ");
  auto set = [&](auto tag) {
    using T = typename decltype(tag)::type;
    if (Widens(info)) SetSumToCompute<T, Accumulator<T>>(info, *plan, shape);
    else SetSumToCompute<T, T>(info, *plan, shape);
  };
  if (DispatchFloat(info.InputDType(0), set)) return {};
  return info.Refuse(std::string("does not sum ") + DTypeName(info.InputDType(0)));
}

}  // namespace

void RegisterSumTo(KernelRegistry& registry) {
  auto add = [&](std::vector<Alias> aliases, KernelFactory create) {
    registry.Add({.op_type = "SumTo",
                  .domain = kCaesuraDomain,
                  .types = kFloatTypes,
                  .host_inputs = {1},
                  .aliases = std::move(aliases),
                  .create = create});
  };
  add({View(0, 0)}, CreateSumToView);
  add({}, CreateSumTo);
}

}  // namespace caesura
