// SPDX-License-Identifier: Apache-2.0
// Runs a ReductionSpec with an Op that says what is accumulated:
//
//   struct Op {                                     // for elements of type T
//     using Lane = ...; using Total = ...;          // accumulators: of a short stretch, and of
//         everything
//     static Lane Start(); static Total StartTotal();
//     static Lane Step(Lane acc, T x, Lane shift);  // shift: see kShifted
//     static Total Merge(Total a, Total b);         // a Lane converts to a Total
//     static T Finish(Total total, int64_t count, Lane shift);
//     static constexpr bool kShifted = false;       // true: each output has a shift of its own
//     (ReduceLogSumExp) static constexpr int64_t kLanes = 16;         // accumulators side by side
//     along a row
//   };
//
// Sums run in lanes that the compiler vectorises and are gathered into the Total every few hundred
// elements, so
// that rounding errors do not grow with the length.
#ifndef CAESURA_CORE_OPS_REDUCTION_REDUCTION_ENGINE_H_
#define CAESURA_CORE_OPS_REDUCTION_REDUCTION_ENGINE_H_

#include <algorithm>

#include "core/kernels/simd/parallel.h"
#include "core/kernels/kernel.h"
#include "core/kernels/walks/odometer.h"
#include "core/ops/reduction/reduction_spec.h"

namespace caesura {

template <typename Op, typename T>
class ReductionEngine {
 public:
  using Lane = typename Op::Lane;
  using Total = typename Op::Total;

  // `partials`: scratch for PartialCount(plan) Totals. `shifts`: one an output, or null.
  ReductionEngine(const ReductionSpec& plan, const T* x, T* y, Total* partials, const Lane* shifts)
      : plan_(plan), x_(x), y_(y), partials_(partials), shifts_(shifts) {}

  static int64_t PartialCount(const ReductionSpec& plan) {
    return plan.chunks > 1 ? plan.chunks * plan.outputs : 0;
  }

  void Run(int threads) {
    if (plan_.outputs == 0) return;
    const int64_t work =
        plan_.outputs * std::max<int64_t>(1, plan_.count) / (plan_.items() * plan_.chunks);
    const int64_t grain = std::max<int64_t>(1, kParallelGrain / std::max<int64_t>(1, work));
    ParallelFor(threads, plan_.items() * plan_.chunks, grain,
                [this](int64_t first, int64_t last) { RunItems(first, last); });
    if (plan_.chunks == 1) return;
    for (int64_t i = 0; i < plan_.outputs; ++i) {
      Total total = Op::StartTotal();
      for (int64_t c = 0; c < plan_.chunks; ++c)
        total = Op::Merge(total, partials_[c * plan_.outputs + i]);
      y_[i] = Op::Finish(total, plan_.count, Shift(i));
    }
  }

 private:
  static constexpr int64_t kLanes = Op::kLanes;
  // Elements of a row, and rows of a column, before lanes are gathered.
  static constexpr int64_t kStretch = 512, kRowStretch = 32;

  Lane Shift(int64_t output) const {
    if constexpr (Op::kShifted) return shifts_[output];
    return Lane();
  }

  // Work unit u is item u % items, chunk u / items.
  void RunItems(int64_t first, int64_t last) {
    Odometer<1> kept(plan_.kept_extents, {&plan_.kept_strides});
    for (int64_t unit = first; unit < last; ++unit) {
      const int64_t item = unit % plan_.items(), chunk = unit / plan_.items();
      const int64_t cell = item / plan_.column_blocks, block = item % plan_.column_blocks;
      if (unit == first || item == 0) {
        kept.Seek(cell);
      } else if (block == 0) {
        kept.Next();
      }
      const int64_t begin = plan_.chunk_units() * chunk / plan_.chunks;
      const int64_t end = plan_.chunk_units() * (chunk + 1) / plan_.chunks;
      if (plan_.inner_reduced) {
        const Total total = ReduceRows(x_ + kept.offset(0), begin, end, Shift(cell));
        Store(chunk, cell, &total, 1);
      } else {
        const int64_t column = block * kColumnBlock;
        ReduceColumns(x_ + kept.offset(0) + column, chunk, cell * plan_.inner + column, begin, end);
      }
    }
  }

  void Store(int64_t chunk, int64_t output, const Total* totals, int64_t count) {
    for (int64_t i = 0; i < count; ++i) {
      if (plan_.chunks > 1) {
        partials_[chunk * plan_.outputs + output + i] = totals[i];
      } else {
        y_[output + i] = Op::Finish(totals[i], plan_.count, Shift(output + i));
      }
    }
  }

  // The inner axis is reduced: whole rows of it, or a part of the only one.
  Total ReduceRows(const T* x, int64_t begin, int64_t end, Lane shift) const {
    if (plan_.chunks_inner()) return ReduceRow(x + begin, end - begin, shift);
    Odometer<1> walk(plan_.reduced_extents, {&plan_.reduced_strides});
    Total total = Op::StartTotal();
    if (begin < end) walk.Seek(begin);
    for (int64_t r = begin; r < end; ++r, walk.Next()) {
      total = Op::Merge(total, ReduceRow(x + walk.offset(0), plan_.inner, shift));
    }
    return total;
  }

  static Total ReduceRow(const T* x, int64_t count, Lane shift) {
    Total total = Op::StartTotal();
    int64_t i = 0;
    while (count - i >= kLanes) {
      Lane lanes[kLanes];
      for (Lane& lane : lanes) lane = Op::Start();
      const int64_t stop = i + std::min(kStretch, (count - i) / kLanes * kLanes);
      for (; i < stop; i += kLanes) {
        for (int64_t l = 0; l < kLanes; ++l) lanes[l] = Op::Step(lanes[l], x[i + l], shift);
      }
      for (const Lane& lane : lanes) total = Op::Merge(total, lane);
    }
    Lane tail = Op::Start();
    for (; i < count; ++i) tail = Op::Step(tail, x[i], shift);
    return Op::Merge(total, tail);
  }

  // The inner axis is kept: a block of columns, row by row.
  void ReduceColumns(const T* x, int64_t chunk, int64_t output, int64_t begin, int64_t end) {
    const int64_t columns = std::min(kColumnBlock, plan_.inner - output % plan_.inner);
    Lane lanes[kColumnBlock], shifts[kColumnBlock];
    Total totals[kColumnBlock];
    for (int64_t j = 0; j < columns; ++j) {
      totals[j] = Op::StartTotal();
      shifts[j] = Shift(output + j);
    }
    Odometer<1> walk(plan_.reduced_extents, {&plan_.reduced_strides});
    if (begin < end) walk.Seek(begin);
    for (int64_t r = begin; r < end;) {
      const int64_t stop = std::min(end, r + kRowStretch);
      for (int64_t j = 0; j < columns; ++j) lanes[j] = Op::Start();
      for (; r < stop; ++r, walk.Next()) {
        const T* row = x + walk.offset(0);
        for (int64_t j = 0; j < columns; ++j) lanes[j] = Op::Step(lanes[j], row[j], shifts[j]);
      }
      for (int64_t j = 0; j < columns; ++j) totals[j] = Op::Merge(totals[j], lanes[j]);
    }
    Store(chunk, output, totals, columns);
  }

  const ReductionSpec& plan_;
  const T* x_;
  T* y_;
  Total* partials_;
  const Lane* shifts_;
};

// The factory of a Reduce op: reads axes and keepdims, books scratch, sets output and function.
template <typename Op, typename T>
Status SetReduction(KernelInfo& info) {
  const Shape& shape = info.InputShape(0);
  Result<std::vector<bool>> reduced = ReducedAxes(info, shape);
  if (!reduced.ok()) return reduced.status();
  const bool keepdims = info.Attr<int64_t>("keepdims", 1) != 0;
  info.SetOutput(0, info.InputDType(0), ReducedShape(shape, *reduced, keepdims));
  const ReductionSpec plan = MakeReductionPlan(shape, *reduced);
  using Engine = ReductionEngine<Op, T>;
  const size_t scratch = info.BookScratch(Engine::PartialCount(plan) * sizeof(typename Op::Total));
  info.SetCompute([plan, scratch, threads = info.threads()](KernelContext& context) {
    Engine(plan, context.Input<T>(0), context.Output<T>(0),
           context.Scratch<typename Op::Total>(scratch), nullptr)
        .Run(threads);
  });
  return {};
}

// SetReduction for the T among Ts that input 0 has.
template <template <typename> class Op, typename... Ts>
Status CreateReduction(KernelInfo& info) {
  Status status = info.Refuse(std::string("does not reduce ") + DTypeName(info.InputDType(0)));
  DispatchDType<Ts...>(info.InputDType(0), [&](auto tag) {
    using T = typename decltype(tag)::type;
    status = SetReduction<Op<T>, T>(info);
  });
  return status;
}

}  // namespace caesura

#endif  // CAESURA_CORE_OPS_REDUCTION_REDUCTION_ENGINE_H_
